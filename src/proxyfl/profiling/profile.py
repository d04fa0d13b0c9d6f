"""One client's round taken apart: what each phase of a step costs, and how that compares with the machine.

The real trainer trains the client several times over: to warm up, by the clock alone, with a clock at every
span, with one at every convolution, and under a counter of arithmetic operations. Then the server plays its
part of the round.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.spans import EVALUATE, loss_span, serve_span
from proxyfl.core.state import Task, Update
from proxyfl.data.dataset import Split
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.evaluate import eval_batch
from proxyfl.federation.loop import Server, play_round
from proxyfl.methods.base import Method, overrides
from proxyfl.profiling.encoding import measure_encoding
from proxyfl.profiling.hardware import clock, matrix_peak, peak_memory
from proxyfl.profiling.instrumentation import Convolutions, Recording, SomeSteps, counted_operations
from proxyfl.profiling.phases import ON_CLIENT, Phase, Profile, step_phases
from proxyfl.runs.build import assemble
from proxyfl.runs.simulation import Simulation, prepare

SECONDS, MOST = 10.0, 50
"""How long the measured steps, each taken twice, last together where nobody says how many there are, and how
many there are at most."""

WARM_UP = 2
FEW = 10
"""Steps in which convolutions are timed, at most."""

TEST_BATCHES = 2
"""Batches of test images from which the time of the whole evaluation is projected."""

Tell = Callable[[str, float], None]
"""Takes what is being measured, in words, and the share that is done."""


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

    ``steps`` of its steps are measured, by default as many as take about ten seconds, but at most 50;
    ``client`` is by default the largest of the first round. Data that is loaded already may be passed as
    ``simulation``.
    """
    tell("data", 0.0)
    root, encoding = Path(data_root) if data_root else None, None
    if config.model.encoder:
        tell("encoder", 0.0)
        encoding = measure_encoding(config, root)
    simulation = simulation or prepare(config, root)
    population = simulation.population
    if client is not None and not 0 <= client < len(population.sizes):
        raise ConfigError(f"client {client} does not exist; there are 0 to {len(population.sizes) - 1}")
    everything = simulation.dataset.test
    simulation = _fewer_tests(simulation, config)
    with tempfile.TemporaryDirectory(prefix="proxyfl-") as folder, numerics(config.compute):
        federation = assemble(config, simulation, workers=0)
        federation.settle(Path(folder))
        central, trainer = federation.server, federation.trainer
        central.engine = engine = _OneClient(config, central, trainer, simulation, tell)
        engine.steps, engine.client = steps, client
        try:
            play_round(central, federation.state, ())
        finally:
            engine.recording.stop()
    if engine.found is None:
        raise RunError(f"no client of round 1 holds images that {config.method.name} can train on")
    spent = engine.recording.spent()
    tell("done", 1.0)
    measured = len(simulation.dataset.test), len(everything)
    if EVALUATE in spent:
        spent[EVALUATE] *= measured[1] / measured[0]
    server = tuple(Phase(name, 1000 * seconds) for name, seconds in spent.items())
    called = simulation.dataset.called
    return dataclasses.replace(
        engine.found, server=server, test_images=measured, encoding=encoding, called=called
    )


class _OneClient:
    """An engine that trains one client, with instruments; the others are said to have sent the same update,
    so that the server has its usual work, which ``recording`` records.
    """

    def __init__(
        self, config: Config, federation: Server, trainer: ClientTrainer, simulation: Simulation, tell: Tell
    ) -> None:
        self.config, self.federation, self.trainer = config, federation, trainer
        self.simulation, self.tell = simulation, tell
        self.recording = Recording(clock(trainer.device), _idle_hooks(trainer.method))
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
        self.recording.start()
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
        if trainer.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(trainer.device)
        warm = SomeSteps(min(WARM_UP, self.steps or WARM_UP), clock(trainer.device))
        self._train(task, warm)
        count = min(self.steps or _affordable(warm.seconds[-1]), warm.whole_round)
        plain = SomeSteps(count, clock(trainer.device), self._follow(count, 0.1))
        self._train(task, plain)
        memory = peak_memory(trainer.device)
        unseen = _idle_hooks(trainer.method)
        with Recording(clock(trainer.device), unseen) as recording:
            update = self._train(task, SomeSteps(count, tell=self._follow(count, 0.4)))
        losses = _own_losses(trainer.method, update)
        self.tell("convolutions", 0.7)
        few = SomeSteps(min(count, FEW))
        convolutions = Convolutions(clock(trainer.device))
        with convolutions, Recording(lambda: convolutions.forward, unseen) as forward:
            self._train(task, few)
        in_steps = sum(seconds for name, seconds in forward.spent().items() if name not in ON_CLIENT)
        per_step = 1 / (len(few.seconds) * sum(plain.seconds) / count)
        self.tell("operations", 0.75)
        with counted_operations(unseen) as operations:
            self._train(task, SomeSteps(1))
        self.tell("matrix product", 0.8)
        spent = recording.spent()
        phases, counts = step_phases(spent, losses), step_phases(operations.phases(), losses)
        found = Profile(
            method=config.method.name,
            data=config.data.name,
            network=f"{config.model.trained} of width {config.model.width}",
            dtype=config.compute.dtype,
            device=config.compute.device,
            threads=config.compute.threads,
            client_id=task.client,
            images=update.samples,
            steps=count,
            steps_per_round=plain.whole_round,
            updates=updates,
            test_images=(0, 0),
            step=tuple(Phase(name, 1e3 * phases[name] / count, counts.get(name, 0) / 1e9) for name in phases),
            client=tuple(Phase(name, 1000 * spent[name]) for name in ON_CLIENT),
            server=(),
            conv_forward=in_steps * per_step,
            conv_backward=convolutions.backward * per_step,
            peak=matrix_peak(config.compute.dtype, trainer.device),
            memory=memory,
            cores=plain.cpu_seconds / sum(plain.seconds),
        )
        return found, update

    def _train(self, task: Task, steps: SomeSteps) -> Update:
        data = self.simulation.holdings.client(task.client, oracle=self.trainer.method.oracle)
        return self.trainer.train(task, data, steps=steps)

    def _follow(self, count: int, before: float) -> Callable[[int], None]:
        return lambda done: self.tell(f"step {done} of {count}", before + 0.3 * done / count)


def _affordable(seconds: float) -> int:
    """How many steps are measured where one takes this long."""
    return min(MOST, max(1, round(SECONDS / 2 / seconds)))


def _idle_hooks(method: Method) -> list[str]:
    """The spans around hooks that parts leave empty."""
    losses = [loss_span(addon.name) for addon in method.addons if not overrides(addon, "term")]
    return losses + [serve_span(part.name) for part in method.parts if not overrides(part, "serve")]


def _own_losses(method: Method, update: Update) -> list[str]:
    """What the method calls its losses beside the supervised one; add-ons have theirs besides."""
    others = {"supervised", *(addon.name for addon in method.addons)}
    names = [name.removeprefix("loss/") for name in update.metrics if name.startswith("loss/")]
    return [name for name in names if name not in others]


def _fewer_tests(simulation: Simulation, config: Config) -> Simulation:
    dataset = simulation.dataset
    batch = eval_batch(config.compute.eval_batch, dataset.image_size, torch.device(config.compute.device))
    test, count = dataset.test, TEST_BATCHES * batch
    sample = Split(test.images[:count], test.labels[:count])
    return dataclasses.replace(simulation, dataset=dataclasses.replace(dataset, test=sample))
