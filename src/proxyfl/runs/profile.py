"""One client's round taken apart: what each phase of a step costs, and how that compares with the machine.

The real trainer trains the client several times over, each time with another instrument around it: a clock,
a counter of arithmetic operations, torch's profiler. Then the server plays its part of the round.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile as kernel_recorder
from torch.utils.flop_counter import FlopCounterMode

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import Task, Update
from proxyfl.data.dataset import Split
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.evaluate import eval_batch
from proxyfl.federation.loop import Server, play_round
from proxyfl.runs import phases
from proxyfl.runs.build import assemble
from proxyfl.runs.phases import Clock, Steps, loss_name, watched, watched_server
from proxyfl.runs.simulation import Simulation, prepare

SECONDS = 10.0
"""How long the timed steps take together where nobody says how many there are."""

WARM_UP, KERNEL_STEPS = 2, 3
TEST_BATCHES = 2
"""Batches of test images from which the time of the whole evaluation is projected."""

PEAK_SECONDS = 1.0
LEAST = 0.0005
"""The share of a step from which on deciding and observing are no part of the rest."""

NETWORK = (phases.TEACHER, phases.FORWARD, phases.BACKWARD)
"""The phases in which the network computes."""

FIRST = (phases.WEAK, phases.STRONG, phases.TEACHER, phases.FORWARD, phases.PSEUDO)
LAST = (phases.BACKWARD, phases.OPTIMISER, phases.OBSERVE, phases.REST)
ON_CLIENT = (phases.BEGIN, phases.FINISH, phases.ROUND)

Tell = Callable[[str, float], None]
"""Takes what is being measured, in words, and the share that is done."""


@dataclass(frozen=True)
class Phase:
    """A part of a step or of a round. ``gflop`` are the operations of convolutions and matrix products."""

    name: str
    ms: float
    gflop: float = 0.0

    @property
    def gflops(self) -> float:
        """Billions of operations per second."""
        return 1000 * self.gflop / self.ms if self.ms else 0.0


@dataclass(frozen=True)
class Profile:
    """What was measured. ``step`` are the phases of a mean step and add up to it; ``client`` and ``server``
    happen once a round. Convolution shares are parts of a step's time; ``peak`` is what a plain matrix
    product reaches, in GFLOP/s; ``cores`` is CPU time over wall time.
    """

    method: str
    data: str
    network: str
    dtype: str
    device: str
    threads: int
    client_id: int
    images: int
    steps: int
    steps_per_round: int
    updates: int
    test_images: tuple[int, int]
    step: tuple[Phase, ...]
    client: tuple[Phase, ...]
    server: tuple[Phase, ...]
    conv_forward: float
    conv_backward: float
    peak: float
    memory: int
    cores: float

    @property
    def step_ms(self) -> float:
        return sum(phase.ms for phase in self.step)

    @property
    def round_seconds(self) -> float:
        """The client's whole round, projected from the steps that were taken."""
        return (self.steps_per_round * self.step_ms + sum(phase.ms for phase in self.client)) / 1000

    @property
    def network_phase(self) -> Phase:
        """Teacher, forward and backward pass together."""
        parts = [phase for phase in self.step if phase.name in NETWORK]
        return Phase("network", sum(part.ms for part in parts), sum(part.gflop for part in parts))

    def share(self, phase: Phase) -> float:
        """Of a step's time."""
        return phase.ms / self.step_ms

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Profile:
        """The inverse of ``dataclasses.asdict``."""
        rows = {name: tuple(Phase(**row) for row in tree[name]) for name in ("step", "client", "server")}
        return cls(**{**tree, **rows, "test_images": tuple(tree["test_images"])})


def profile(
    config: Config,
    data_root: str | Path | None = None,
    *,
    steps: int | None = None,
    client: int | None = None,
    tell: Tell = lambda words, share: None,
    simulation: Simulation | None = None,
) -> Profile:
    """Take one client's first round apart, in this process and without leaving anything behind.

    ``steps`` of its steps are timed, by default as many as take about ten seconds; ``client`` is by default
    the largest of the first round. Data that is loaded already may be passed as ``simulation``.
    """
    tell("data", 0.0)
    simulation = simulation or prepare(config, Path(data_root) if data_root else None)
    population = simulation.population
    if client is not None and not 0 <= client < len(population.sizes):
        raise ConfigError(f"client {client} does not exist; there are 0 to {len(population.sizes) - 1}")
    everything = simulation.dataset.test
    simulation = _fewer_tests(simulation, config)
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="proxyfl-") as folder, numerics(config.compute):
        federation = assemble(config, simulation, workers=0)
        federation.settle(Path(folder))
        central, trainer = federation.server, federation.trainer
        central.engine = engine = _OneClient(config, central, trainer, simulation, tell)
        engine.steps, engine.client = steps, client
        clock.read = _reader(trainer.device)
        with watched_server(central, clock):
            play_round(central, federation.state, ())
    if engine.found is None:
        raise RunError(f"no client of round 1 holds images that {config.method.name} can train on")
    tell("done", 1.0)
    measured = len(simulation.dataset.test), len(everything)
    clock.spent[phases.EVALUATE] *= measured[1] / measured[0]
    server = tuple(Phase(name, 1000 * seconds) for name, seconds in clock.spent.items())
    return dataclasses.replace(engine.found, server=server, test_images=measured)


class _OneClient:
    """An engine that trains one client, with instruments; the others are said to have sent the same update,
    so that the server has its usual work.
    """

    def __init__(
        self, config: Config, federation: Server, trainer: ClientTrainer, simulation: Simulation, tell: Tell
    ) -> None:
        self.config, self.federation, self.trainer = config, federation, trainer
        self.simulation, self.tell = simulation, tell
        self.steps: int | None = None
        self.client: int | None = None
        self.found: Profile | None = None

    def run(self, tasks: Iterable[Task]) -> Iterator[Update]:
        tasks, sizes = list(tasks), self.simulation.population.sizes
        chosen = self._choose(tasks)
        if chosen is None:
            return
        self.found, update = self._measure(chosen, len(tasks))
        self.tell("server", 0.9)
        for task in tasks:
            yield dataclasses.replace(update, client=task.client, samples=int(sizes[task.client]))

    def close(self) -> None:
        """Nothing to end."""

    def _choose(self, tasks: list[Task]) -> Task | None:
        population = self.simulation.population
        if self.client is None:
            return max(tasks, key=lambda task: population.sizes[task.client], default=None)
        if not population.sizes[self.client] or not self.federation.able([self.client]):
            name = self.config.method.name
            raise ConfigError(
                f"client {self.client} holds no images that {name} can train on; choose another"
            )
        mine = [task for task in tasks if task.client == self.client]
        return mine[0] if mine else next((dataclasses.replace(t, client=self.client) for t in tasks), None)

    def _measure(self, task: Task, updates: int) -> tuple[Profile, Update]:
        trainer, config = self.trainer, self.config
        warm, _ = self._train(task, min(WARM_UP, self.steps or WARM_UP))
        if trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.device)
        count = self.steps or max(1, round(SECONDS / warm.seconds[-1]))
        count = min(count, warm.whole_round)
        steps, update = self._train(task, count, tell=self._follow(count))
        memory = peak_memory(trainer.device)
        self.tell("operations", 0.7)
        operations = self._operations(task)
        self.tell("kernels", 0.8)
        forward, backward = self._convolutions(task, min(KERNEL_STEPS, count))
        self.tell("matrix product", 0.85)
        spent = _named(steps)
        found = Profile(
            method=config.method.name,
            data=config.data.name,
            network=f"{config.model.name} of width {config.model.width}",
            dtype=config.compute.dtype,
            device=config.compute.device,
            threads=config.compute.threads,
            client_id=task.client,
            images=update.samples,
            steps=count,
            steps_per_round=steps.whole_round,
            updates=updates,
            test_images=(0, 0),
            step=tuple(Phase(name, 1000 * spent[name] / count, operations.get(name, 0)) for name in spent),
            client=tuple(Phase(name, 1000 * steps.clock.spent[name]) for name in ON_CLIENT),
            server=(),
            conv_forward=forward,
            conv_backward=backward,
            peak=matrix_peak(config.compute.dtype, trainer.device),
            memory=memory,
            cores=steps.cpu_seconds / sum(steps.seconds),
        )
        return found, update

    def _train(
        self,
        task: Task,
        count: int,
        read: Callable[[], float] | None = None,
        recorder: Any = None,
        tell: Callable[[int], None] = lambda done: None,
    ) -> tuple[Steps, Update]:
        clock = Clock(read or _reader(self.trainer.device))
        steps = Steps(clock, count, recorder, tell)
        data = self.simulation.holdings.client(task.client, oracle=self.trainer.method.oracle)
        with watched(self.trainer, steps):
            update = self.trainer.train(task, data)
        return steps, update

    def _follow(self, count: int) -> Callable[[int], None]:
        return lambda done: self.tell(f"step {done} of {count}", 0.1 + 0.6 * done / count)

    def _operations(self, task: Task) -> dict[str, float]:
        """Billions of operations of one step, by phase: the clock reads a counter instead of the time."""
        counter = FlopCounterMode(display=False)
        with counter:
            steps, _ = self._train(task, 1, counter.get_total_flops)
        return {name: count / 1e9 for name, count in _named(steps).items()}

    def _convolutions(self, task: Task, count: int) -> tuple[float, float]:
        """The shares of convolution kernels, forward and backward, in the time of the steps."""
        cuda = self.trainer.device.type == "cuda"
        recorder = kernel_recorder(use_device="cuda" if cuda else None, use_kineto=cuda)
        with _quiet_recorder():
            steps, _ = self._train(task, count, recorder=recorder)
        spent = {True: 0.0, False: 0.0}
        for event in recorder.key_averages():  # type: ignore[no-untyped-call]
            if event.key.startswith("aten::") and "conv" in event.key:
                microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
                spent["backward" in event.key] += microseconds / 1e6
        total = sum(steps.seconds)
        return spent[False] / total, spent[True] / total


@contextmanager
def _quiet_recorder() -> Iterator[None]:
    """Without the lines that torch's recorder writes about itself; it reads this when it first starts."""
    name = "KINETO_LOG_LEVEL"
    given = name in os.environ
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if not given:
            del os.environ[name]


def _named(steps: Steps) -> dict[str, float]:
    """What a step's phases took, in the order of a step; the method's losses under the names it gave them."""
    spent = dict(steps.clock.spent)
    losses = spent.pop(phases.LOSSES, 0.0)
    if steps.losses:
        spent[loss_name(*steps.losses)] = losses
    else:
        spent[phases.REST] += losses
    for outside in (*ON_CLIENT, phases.IDLE):
        spent.pop(outside, None)
    least = LEAST * sum(spent.values())
    for name in (phases.PSEUDO, phases.OBSERVE):
        if spent.get(name, least) < least:
            spent[phases.REST] += spent.pop(name)
    middle = sorted((name for name in spent if name not in FIRST + LAST), key=_place)
    return {name: spent[name] for name in (*FIRST, *middle, *LAST) if name in spent}


def _place(name: str) -> tuple[bool, bool]:
    """Supervised first, then the method's own losses, then those of add-ons in their order."""
    return name != loss_name("supervised"), not name.startswith(loss_name("unlabelled"))


def _fewer_tests(simulation: Simulation, config: Config) -> Simulation:
    dataset = simulation.dataset
    batch = eval_batch(config.compute.eval_batch, dataset.image_size, torch.device(config.compute.device))
    test, count = dataset.test, TEST_BATCHES * batch
    sample = Split(test.images[:count], test.labels[:count])
    return dataclasses.replace(simulation, dataset=dataclasses.replace(dataset, test=sample))


def _reader(device: torch.device) -> Callable[[], float]:
    """The time, after everything that was asked of the device is done."""
    if device.type not in ("cuda", "mps"):
        return time.perf_counter
    wait = torch.cuda.synchronize if device.type == "cuda" else torch.mps.synchronize

    def read() -> float:
        wait()
        return time.perf_counter()

    return read


def matrix_peak(dtype: str, device: torch.device, seconds: float = PEAK_SECONDS) -> float:
    """GFLOP/s of a plain matrix product with the threads that are set: the best of many, of three sizes."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    read, generator = _reader(device), torch.Generator().manual_seed(0)
    best, end = 0.0, time.perf_counter() + seconds
    # Small products slip through between the turns of other programs, large ones fill a GPU.
    sizes = (512, 1024, 2048) if device.type == "cpu" else (2048, 4096, 8192)
    for place, size in enumerate(sizes):
        a = torch.randn(size, size, generator=generator).to(device, kind)
        for turn in range(100):
            began = read()
            if turn > 1 and began > end - seconds * (2 - place) / 3:
                break
            torch.mm(a, a)
            best = max(best, 2e-9 * size**3 / (read() - began))
    return best


def peak_memory(device: torch.device) -> int:
    """Bytes: of this process so far, or, on a GPU, of tensors there since the count was reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
