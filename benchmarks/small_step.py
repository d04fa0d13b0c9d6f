"""How much faster could a small training step be? What its parts reach beside a plain matrix product.

    python benchmarks/small_step.py [--repeats 5] [--against CHECKOUT] [--out results/small-step.csv]

A whole ProxyFL step at 16 × 16 and width 1 (32 + 64 + 64 images, fp32, one thread, the allocator of the
worker processes) by its phases; then its network, forward and backward, in CPU time, the parts taking turns,
the best of the repeats: every convolution by itself, and the same network compiled by ``torch.compile``, in a
process that finds nothing compiled and in one after it, which finds what the first one left on the disk.
Besides, what else was tried: batch norm and ReLU as one function (``by_hand.py``), and strong views of the
images of several steps at once. ``--against`` compares a whole step with that of another version of the
library, in fp32 and bf16, in turns.
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from stage import assemble, drawn_simulation, settings
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from proxyfl.core.config import Config
from proxyfl.core.state import Task
from proxyfl.data.augment import strong
from proxyfl.engines.forkserver import TUNABLES, tuned_environment
from proxyfl.federation.client import numerics
from proxyfl.models.resnet import ResNet
from proxyfl.profiling.hardware import matrix_peak
from proxyfl.profiling.profile import profile
from proxyfl.runs.simulation import Simulation

ROOT = Path(__file__).parents[1]
IMAGES, SIZE, STEPS = 160, 16, 10
LAYOUT = torch.channels_last
VIEWS_AT_ONCE = 8
Row = tuple[str, float, str]


def main() -> None:
    if "mmap_threshold" not in os.environ.get(TUNABLES, ""):  # read by the allocator when a program starts
        os.execve(sys.executable, [sys.executable, *sys.argv], tuned_environment())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "small-step.csv")
    parser.add_argument("--against", type=Path, help="the folder of a checkout with another version")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.randn(IMAGES, 3, SIZE, SIZE).to(memory_format=LAYOUT)
    if options.step:
        print(milliseconds(options.step))
        return
    if options.compile:
        print(compiled_step(images)[1])
        return
    network = ResNet(10, 3, 1).to(memory_format=LAYOUT)
    layers = convolutions(network, images)
    parts: dict[str, Callable[[], None]] = {
        name: lambda each=each: each() for name, (each, _) in layers.items()
    }
    parts["step"] = step_of(network, images)
    parts["step by hand"] = step_of(by_hand_like(network, images), images)
    for steps in (1, VIEWS_AT_ONCE):
        parts[f"views {steps}"] = partial(strong_views, steps)
    with tempfile.TemporaryDirectory(prefix="proxyfl-compiled-") as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        call = [sys.executable, __file__, "--compile"]
        compiling = [
            float(subprocess.run(call, env=environment, stdout=subprocess.PIPE, check=True).stdout)
            for _ in range(2)
        ]
        os.environ.update(environment)
        parts["compiled step"], _ = compiled_step(images)
        parts["compiled step"]()
    best = dict.fromkeys(parts, float("inf"))
    for _ in range(options.repeats):
        for name, part in parts.items():
            best[name] = min(best[name], cpu_seconds(part))
    product = matrix_peak("fp32", torch.device("cpu"))
    operations = {name: work for name, (_, work) in layers.items()}
    rows = [*whole_step(), *table(best, operations, product, *compiling)]
    if options.against:
        rows += compared(options.against, options.repeats)
    for what, value, unit in rows:
        print(f"{what:60} {value:9.3f} {unit}")
    with options.out.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["what", "value", "unit"])
        lines.writerows((what, f"{value:.4g}", unit) for what, value, unit in rows)


def compiled_step(images: Tensor) -> tuple[Callable[[], None], float]:
    """The step of a compiled network, and the seconds of its first call."""
    step = step_of(torch.compile(ResNet(10, 3, 1).to(memory_format=LAYOUT)), images)
    began = time.perf_counter()
    step()
    return step, time.perf_counter() - began


def client(dtype: str) -> tuple[Config, Simulation]:
    """One client whose epoch has 170 steps."""
    config = settings(
        "proxyfl", clients=1, per_round=1, rounds=1, width=1, dtype=dtype, train__batch=32, train__mu=2,
        train__epochs=1,
    )  # fmt: skip
    return config, drawn_simulation(1, labelled=320, unlabelled=32 * IMAGES, images=6000, size=SIZE)


def milliseconds(dtype: str) -> float:
    """CPU time of a step in a client's round: the shortest of three."""
    config, simulation = client(dtype)
    with tempfile.TemporaryDirectory() as folder, numerics(config.compute):
        server, trainer = assemble(Path(folder), config, simulation, 0)
        state = server.start(trainer.initial_weights())
        task, data, found = Task(1, 0, state.weights, state.extras), simulation.holdings.client(0), []
        for _ in range(4):
            began = time.process_time()
            update = trainer.train(task, data)
            found.append(1e3 * (time.process_time() - began) / update.metrics["steps"])
    return min(found[1:])


def compared(other: Path, repeats: int) -> list[Row]:
    """A whole step now, and as a share of what it takes with the library of another checkout."""
    rows: list[Row] = []
    for dtype in ("fp32", "bf16"):
        times = []
        for _ in range(repeats):
            for root in (other.resolve(), ROOT):
                path = os.pathsep.join((str(root / "src"), str(root / "benchmarks")))
                call = [sys.executable, "-P", __file__, "--step", dtype]
                answer = subprocess.check_output(call, env={**os.environ, "PYTHONPATH": path})
                times.append(float(answer))
        ratios = [now / before for before, now in zip(times[::2], times[1::2], strict=True)]
        rows += [
            (f"a ProxyFL step in a client's round, {dtype}", statistics.median(times[1::2]), "ms"),
            (f"the same, ratio to the version before, {dtype}", statistics.median(ratios), ""),
        ]
    return rows


def whole_step() -> list[Row]:
    """A step of the method, as a client takes it, by its phases."""
    config, simulation = client("fp32")
    found = profile(config, steps=50, simulation=simulation)
    phases = [(f"phase: {phase.name}", 100 * found.share(phase), "%") for phase in found.step]
    return [("a whole ProxyFL step", found.step_ms, "ms"), *phases]


def table(
    best: dict[str, float], work: dict[str, int], product: float, compiling: float, again: float
) -> list[Row]:
    step, compiled, alone = best["step"], best["compiled step"], sum(best[name] for name in work)
    gained = step - compiled
    return [
        ("a plain matrix product", product, "GFLOP/s"),
        *((f"convolution {name}", 1e-9 * work[name] / best[name], "GFLOP/s") for name in work),
        ("the network's part of a step", 1e3 * step, "ms"),
        ("of it convolutions", 100 * alone / step, "%"),
        ("batch norm and ReLU as one function, ratio", best["step by hand"] / step, ""),
        (
            f"strong views of {VIEWS_AT_ONCE} steps at once, ratio",
            best[f"views {VIEWS_AT_ONCE}"] / VIEWS_AT_ONCE / best["views 1"],
            "",
        ),
        ("compiled, ratio", compiled / step, ""),
        ("compilation, first process", compiling, "s"),
        ("compilation, second process", again, "s"),
        ("steps until the first has paid off", compiling / gained if gained > 0 else float("inf"), ""),
        ("steps until the second has paid off", again / gained if gained > 0 else float("inf"), ""),
    ]


def by_hand_like(network: ResNet, images: Tensor) -> ResNet:
    """The same network, computed by hand; in double precision it must have the same gradients."""
    from by_hand import by_hand  # which another version of the library cannot import

    plain, other = copy.deepcopy(network).double(), by_hand(copy.deepcopy(network).double())
    for each in (plain, other):
        step_of(each, images.double())()
    for (name, parameter), found in zip(plain.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found.grad, parameter.grad, msg=name)
    return by_hand(copy.deepcopy(network))


def strong_views(steps: int) -> None:
    images = torch.zeros(64 * steps, 3, SIZE, SIZE, dtype=torch.uint8)
    strong(images, torch.Generator().manual_seed(0))


def cpu_seconds(part: Callable[[], None]) -> float:
    part()
    began = time.process_time()
    for _ in range(STEPS):
        part()
    return (time.process_time() - began) / STEPS


def step_of(network: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[], None]:
    labels = torch.arange(len(images)) % 10

    def step() -> None:
        F.cross_entropy(network(images), labels).backward()

    return step


def convolutions(network: ResNet, images: Tensor) -> dict[str, tuple[Callable[[], None], int]]:
    """Forward and backward of every convolution at the size it has in the network, and its operations."""
    found: dict[str, tuple[Callable[[], None], int]] = {}

    def remember(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            given = inputs[0].detach().clone().requires_grad_(inputs[0].requires_grad)
            gradient = torch.randn_like(output)

            def part() -> None:
                layer.forward(given).backward(gradient)

            with FlopCounterMode(display=False) as counter:
                part()
            found[name] = (part, counter.get_total_flops())

        return hook

    hooks = [
        layer.register_forward_hook(remember(name.removeprefix("trunk.").removesuffix(".conv")))
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Conv2d)
    ]
    network(images)
    for hook in hooks:
        hook.remove()
    return found


if __name__ == "__main__":
    main()
