"""How fast is a round, and where does its time go? Ratios to the usual way, taken in one run.

    python benchmarks/speed.py [--repeats 3] [--skip-overhead] [--out results/speed.csv]

1. A local round of ProxyFL at the paper's batch sizes (128 + 256 + 256 images of 32 × 32) for one client per
   core: ``benchmarks/plain.py``, client after client with all threads, beside the library's worker processes.
   Both take turns, because machines are noisy; figures are medians over the repeats.
2. The share of convolutions in a step, and the names of what is not a convolution.
3. What the framework itself costs in a round of 20 clients of 100 steps.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain import PlainSettings, plain_round, usual_form
from stage import assemble

from proxyfl import Experiment, Run
from proxyfl.core.config import Config
from proxyfl.core.machine import usable_cores
from proxyfl.core.state import Task, Update
from proxyfl.models import build
from proxyfl.profiling.process import profile_in_process
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import prepare

ROOT = Path(__file__).parents[1]
STEPS = {1: 6, 4: 2}
"""Steps of a client's round by width: enough to measure, little enough to wait for."""

WANTED = {1: 4.0, 4: 3.5}
"""The ratios to reach, by width."""

QUIET = 0.7
"""The load above which ratios flatter the library: threads of one process wait for each other."""

Row = tuple[str, str, float, str]
"""(part, what, value, unit)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--widths", default="1,4")
    parser.add_argument("--skip-overhead", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "speed.csv")
    options = parser.parse_args()
    rows: list[Row] = [("machine", "load when it began (0: idle)", os.getloadavg()[0], "")]
    if rows[0][2] > QUIET:
        print(f"note: load {rows[0][2]:.1f}: other programs slow the usual way down more than ours")
    with tempfile.TemporaryDirectory() as folder:
        for width in map(int, options.widths.split(",")):
            rows += told(local_round(width, options.repeats, Path(folder)))
            rows += told(convolutions(width, Path(folder)))
        if not options.skip_overhead:
            rows += told(overhead(Path(folder)))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["part", "what", "value", "unit"])
        table.writerows((part, what, f"{value:.4g}", unit) for part, what, value, unit in rows)


def told(rows: list[Row]) -> list[Row]:
    for part, what, value, unit in rows:
        print(f"{part:28} {what:44} {value:9.3f} {unit}", flush=True)
    return rows


def images(folder: Path, count: int) -> str:
    """Random images on disk; what they show does not change how long they take."""
    path = folder / f"images-{count}.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        shape = (count, 32, 32, 3)
        np.savez(
            path,
            x_train=rng.integers(0, 256, shape, dtype=np.uint8),
            y_train=np.arange(count) % 10,
            x_test=rng.integers(0, 256, (1000, *shape[1:]), dtype=np.uint8),
            y_test=np.arange(1000) % 10,
        )
    return f"npz:{path}"


def settings(folder: Path, clients: int, per_client: int, **more: Any) -> Config:
    return resolve(
        "cifar10",
        from_short(
            {
                "data__name": images(folder, clients * per_client),
                "data__flip": "always",
                "partition__scheme": "iid",
                "clients": clients,
                "per_round": clients,
                "labels__rule": "share",
                **more,
            }
        ),
        {"method": {"name": "proxyfl"}},
    )


def local_round(width: int, repeats: int, folder: Path) -> list[Row]:
    """The same clients, the usual way and the library's way, in turns."""
    cores, steps = usable_cores(), STEPS[width]
    config = settings(folder, cores, 128 * steps + 10, width=width, train__epochs=1)
    simulation = prepare(config)
    federation, trainer = assemble(folder / f"width-{width}", config, simulation, cores)
    start = federation.start(trainer.initial_weights())
    weights, tasks = start.weights, [Task(1, k, start.weights, start.extras) for k in range(cores)]
    network = usual_form(build("resnet8", 10, 3, width, heads=True))
    usual, ours, processor = [], [], []

    def usual_way() -> None:
        for client in range(cores):
            plain_round(network, weights, simulation.holdings.client(client), PlainSettings(epochs=1))

    with closing(federation.engine):
        for repeat in range(repeats + 1):  # the first one warms up
            with clocked() as plain:
                usual_way()
            with clocked() as mine:
                answers = list(federation.engine.run(tasks))
            failed = [answer for answer in answers if not isinstance(answer, Update)]
            if failed:
                raise SystemExit(f"a client failed: {failed[0]}")
            done = sum(answer.metrics["steps"] for answer in answers)  # type: ignore[union-attr]
            if done != cores * steps:
                raise SystemExit(f"{done} steps were taken, not {cores * steps}")
            if repeat:
                usual.append(plain["wall"])
                ours.append(mine["wall"])
                processor.append(plain["processor"])
    ratios = [a / b for a, b in zip(usual, ours, strict=True)]
    part = f"local round, width {width}"
    per_step = 1 / (cores * steps)
    return [
        (part, "the usual way, CPU time of a step", statistics.median(processor) * per_step, "s"),
        (part, "the usual way, wall time of a step", statistics.median(usual) * per_step, "s"),
        (
            part,
            f"proxyfl, wall time of a step ({config.compute.dtype})",
            statistics.median(ours) * per_step,
            "s",
        ),
        (part, f"times as fast (wanted: {WANTED[width]:g})", statistics.median(ratios), "×"),
        (part, "times as fast, lowest of the repeats", min(ratios), "×"),
    ]


@contextmanager
def clocked() -> Iterator[dict[str, float]]:
    found: dict[str, float] = {}
    usage, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield found
    after = resource.getrusage(resource.RUSAGE_SELF)
    found["wall"] = time.perf_counter() - wall
    found["processor"] = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime


def convolutions(width: int, folder: Path) -> list[Row]:
    """A client's steps taken apart in a process that is set up as a worker is."""
    config = settings(folder, 1, 128 * STEPS[width] + 10, width=width)
    found = profile_in_process(config, steps=STEPS[width])
    part = f"a step, width {width}"
    shares = [(part, f"phase: {phase.name}", 100 * found.share(phase), "%") for phase in found.step]
    return [
        (part, "convolutions (wanted at width 4: 70)", 100 * (found.conv_forward + found.conv_backward), "%"),
        *shares,
        (part, "network", found.network_phase.gflops, "GFLOP/s"),
        (part, "a plain matrix product", found.peak, "GFLOP/s"),
        (part, "share of a core it had", 100 * found.cores, "%"),
        (part, "peak memory of the process", found.memory / 1e9, "GB"),
    ]


def overhead(folder: Path) -> list[Row]:
    """Two real rounds of 20 clients of 100 steps; the second is taken apart."""
    cores = usable_cores()
    config = settings(folder, 20, 650, width=1, rounds=2, train__batch=32, keep__snapshot_every=0)
    seconds: list[float] = []

    class Listener:
        def round_started(self, round: int, clients: list[int]) -> None:
            seconds.clear()

        def answered(self, answer: Any) -> None:
            seconds.append(answer.seconds)

        def round_finished(self, report: Any) -> None:
            pass

    run: Run = Experiment(config=config).run(folder / "overhead", [Listener()], cores)
    timing = run.timing[-1]
    training = sum(seconds) / cores
    whole = sum(timing[name] for name in ("train", "serve", "evaluate", "record"))
    own = timing["train"] - training + timing["record"]
    part = "a round of 20 × 100 steps"
    return [
        (part, "whole round", whole, "s"),
        (part, "clients at work", training, "s"),
        (part, "framework (wanted: at most 3 %)", 100 * own / whole, "%"),
        (part, "  of it checkpoint and metrics", 100 * timing["record"] / whole, "%"),
        (part, "proxy tuning and prior", 100 * timing["serve"] / whole, "%"),
        (part, "evaluation (1,000 images)", 100 * timing["evaluate"] / whole, "%"),
    ]


if __name__ == "__main__":
    torch.set_num_threads(usable_cores())
    main()
