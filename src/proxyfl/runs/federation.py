"""A federation of objects: data, partition, network, method, aggregation, engine. Nothing of it needs a
directory, a registry or a config file; it can be recorded as a run.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from proxyfl.aggregation import Aggregator, Mean
from proxyfl.core.config import Config, KeepSettings, TrainSettings
from proxyfl.core.errors import ConfigError, DataError, RunError
from proxyfl.core.records import choosing
from proxyfl.core.settings import known_fidelity
from proxyfl.core.state import ServerState, Tensors
from proxyfl.core.views import VectorSettings
from proxyfl.data.dataset import Dataset
from proxyfl.data.partition import Partition
from proxyfl.data.stream import ViewSettings
from proxyfl.engines.choose import EngineFactory, choose_engine
from proxyfl.engines.cluster.engine import ClusterEngine
from proxyfl.engines.setup import server_of, trainer_of
from proxyfl.federation.client import numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import Evaluation
from proxyfl.federation.loop import Observer, RoundReport, play_round
from proxyfl.federation.own_training import OwnImages
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.methods.optimisers import OptimiserFactory
from proxyfl.models import LoRA, Network
from proxyfl.runs.describe import describe
from proxyfl.runs.directory import RunDirectory, json_lines
from proxyfl.runs.evaluation import GlobalModel
from proxyfl.runs.exact import differs
from proxyfl.runs.fit import require_fit, require_kinds, require_numbers, weights_of
from proxyfl.runs.loggers import Logger, checked, find_all
from proxyfl.runs.progress import LiveProgress
from proxyfl.runs.recording import Recording
from proxyfl.runs.simulation import Simulation, simulate
from proxyfl.runs.views import chosen_views


class Federation:
    """Many clients that train one model together.

    ``network`` is a registered name, an ``nn.Module`` class or a function that builds one from ``classes``,
    ``channels``, ``width`` and ``image_size`` or fewer of them; by default ``resnet8``, or ``mlp`` for
    vectors. ``vectors`` sets the views of vectors, ``norm`` replaces batch norm, ``trainable`` and ``lora``
    select the part of the network that is trained, and ``weights`` are the initial tensors. ``views`` sets
    how images are normalised and mirrored, and ``test_views`` the same for test images if it differs.
    ``fidelity`` sets the defaults of everything that is not given; objects have their own, as in
    ``ProxyFL(fidelity="paper")`` or ``Train.of("code", epochs=2)``.
    ``workers`` is the number of processes that train clients in parallel, by default one per core; with 0,
    clients are trained in this process. ``engine`` replaces them. Results are bit-identical in all cases.

    >>> import proxyfl
    >>> from proxyfl.methods import ProxyFL
    >>> data = proxyfl.load_dataset("digits")
    >>> split = proxyfl.partition(data, clients=10, per_class=10)
    >>> federation = proxyfl.Federation(
    ...     data, split, network="resnet8", width=1, method=ProxyFL(tau=0.9), rounds=1, per_round=2,
    ...     train=proxyfl.Train(epochs=1, batch=32, lr=0.05), workers=0)
    >>> [report.number for report in federation.rounds()]
    [1]
    """

    def __init__(
        self,
        data: Dataset,
        partition: Partition,
        network: Any = None,
        method: Method | str = "proxyfl",
        *,
        rounds: int = 20,
        per_round: int | None = None,
        seed: int = 1,
        width: int = 4,
        norm: str = "batch",
        trainable: str = "all",
        lora: LoRA | None = None,
        train: TrainSettings | None = None,
        fidelity: str = "clean",
        vectors: VectorSettings | None = None,
        views: ViewSettings | None = None,
        test_views: ViewSettings | None = None,
        optimiser: OptimiserFactory | None = None,
        aggregator: Aggregator | None = None,
        weights: Tensors | nn.Module | str | Path | None = None,
        sampling: str | None = None,
        weighting: str | None = None,
        quorum: int = 1,
        late: str = "refuse",
        max_norm: float = 0.0,
        evaluate_every: int = 1,
        device: str = "cpu",
        dtype: str = "auto",
        threads: int = 1,
        eval_batch: int = 0,
        keep: KeepSettings | None = None,
        workers: int | None = None,
        engine: EngineFactory | None = None,
    ) -> None:
        require_kinds(partition, method, train, aggregator, keep)
        if not isinstance(data, Dataset):
            raise DataError(
                f"data is a {type(data).__name__}; make a data set with Dataset.of(images, labels)"
            )
        require_numbers(data)
        seen = chosen_views(data, vectors, views, test_views, known_fidelity(fidelity))
        simulation = simulate(data, partition, views=seen)
        parts = registry.create(method, fidelity=fidelity) if isinstance(method, str) else method
        chosen = network or _usual_network(data)
        built = Network.of(
            chosen, len(data.classes), data.channels, width, image_size=data.image_size, norm=norm,
            trainable=trainable, lora=lora,
        )  # fmt: skip
        rule = aggregator or Mean()
        start = weights_of(network if weights is None and isinstance(network, nn.Module) else weights)
        federation = {
            "rounds": rounds,
            "per_round": min(8, partition.clients) if per_round is None else per_round,
            "sampling": sampling,
            "weighting": weighting,
            "quorum": quorum,
            "late": late,
            "max_norm": max_norm,
            "evaluate_every": evaluate_every,
        }
        config = describe(
            simulation, built, parts, rule, seed=seed, train=train, federation=federation, keep=keep,
            compute={"device": device, "dtype": dtype, "threads": threads, "eval_batch": eval_batch},
            optimiser=optimiser, start=start, fidelity=fidelity,
        )  # fmt: skip
        self._assemble(config, simulation, built, parts, start, optimiser, rule, workers, engine)
        require_fit(self.trainer)

    def _assemble(
        self,
        config: Config,
        simulation: Simulation,
        network: Network,
        method: Method,
        start: Tensors | None = None,
        optimiser: OptimiserFactory | None = None,
        aggregator: Aggregator | None = None,
        workers: int | None = None,
        engine: EngineFactory | None = None,
    ) -> None:
        if method.oracle and not simulation.dataset.knows_all:
            raise DataError(f"{method.name} needs the label of every image; some are -1 (unknown)")
        self.config, self.simulation, self.method = config, simulation, method
        # A damaged checkpoint sends a run back to the oldest one kept: client states must reach back as far.
        versions = config.keep.checkpoint_every * config.keep.checkpoints + 1
        stores = [ClientStore(Path(), versions) for _ in range(2)]
        self.trainer = trainer_of(
            config,
            method,
            network,
            simulation.train_views,
            stores[0],
            start,
            optimiser,
            aggregator=aggregator,
        )
        every, held = config.keep.metrics == "all", simulation.holdings.server()
        made = engine or (lambda trainer, holdings: choose_engine(trainer, holdings, workers, config))
        self.server = server_of(
            config,
            method,
            simulation.population,
            made(self.trainer, simulation.holdings),
            GlobalModel(self.trainer, simulation, simulation.dataset.test, scores=every),
            len(simulation.dataset.classes),
            aggregator=aggregator,
            store=stores[1],
            own=OwnImages(self.trainer, held) if held is not None else None,
        )
        if (kept := simulation.validation) is not None:
            holders = simulation.partition.validation
            self.server.validate = GlobalModel(self.trainer, simulation, kept, scores=every, holders=holders)
        self.recording: Recording | None = None
        self.history: list[RoundReport] = []
        self.best: RoundReport | None = None
        self.plays = False
        self._state: ServerState | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def assembled(cls, *parts: Any, **options: Any) -> Federation:
        """A federation from a config and the objects that it names (see :mod:`proxyfl.runs.build`)."""
        federation = cls.__new__(cls)
        federation._assemble(*parts, **options)
        return federation

    def __repr__(self) -> str:
        size = f"{self.server.population.sizes.size} clients"
        played = f"{self.state.round} of {self.config.federation.rounds} rounds"
        return f"<Federation: {self.method!r} on '{self.simulation.dataset.name}', {size}, {played}>"

    @property
    def state(self) -> ServerState:
        """The federation between two rounds, as a value: round, weights, what the method keeps."""
        if self._state is None:
            self._state = self.server.start(self.trainer.initial_weights())
        return self._state

    @state.setter
    def state(self, state: ServerState) -> None:
        self._state = state

    def rounds(
        self,
        count: int | None = None,
        observers: Iterable[Observer] = (),
        *,
        log: str | Iterable[str] = (),
        progress: bool = False,
    ) -> Iterator[RoundReport]:
        """Run the next ``count`` rounds, or all that are left, and yield a report after each.

        ``log`` names tools to log to as well (tensorboard, mlflow, wandb); the federation must be recorded.
        ``progress`` shows a progress bar in a terminal, and one line per round elsewhere.
        """
        total = self.config.federation.rounds
        theirs, ours = checked(observers), self._loggers(log)
        last = total if count is None else min(total, self.state.round + count)
        taken = _Taken()
        with ExitStack() as stack:
            stack.callback(self.server.engine.close)
            watching: list[Observer] = [taken, *theirs, *map(stack.enter_context, ours)]
            if progress:
                bar = LiveProgress(Console(stderr=True), total, self._accuracies())
                watching.append(stack.enter_context(bar))
            if self.recording is None:
                self.settle(self._scratch_folder())
            else:
                watching = [*stack.enter_context(self.recording.opened(self)), *watching]
            stack.enter_context(self._playing())
            while self.state.round < last:
                yield self._play(tuple(watching), taken)

    def _play(self, observers: tuple[Observer, ...], taken: _Taken) -> RoundReport:
        """One round. Whoever raises behind the recorder, what is written down and the state agree."""
        try:
            with numerics(self.config.compute):
                play_round(self.server, self.state, observers)
        finally:
            if taken.report is not None:
                report, taken.report = taken.report, None
                self.state = report.state
                self._remember(report)
            elif self.recording is not None:
                self.recording.unsure = True
        return report

    @contextmanager
    def _playing(self) -> Iterator[None]:
        if self.plays:
            raise RunError("rounds of this federation are already running; end that loop first")
        self.plays = True
        try:
            yield
        finally:
            self.plays = False

    def run(
        self, observers: Iterable[Observer] = (), *, log: str | Iterable[str] = (), progress: bool = False
    ) -> Federation:
        """Run all rounds that are left; ``log`` and ``progress`` as in :meth:`rounds`."""
        for _ in self.rounds(observers=observers, log=log, progress=progress):
            pass
        return self

    def _loggers(self, log: str | Iterable[str]) -> list[Logger]:
        tools = find_all(log)
        if tools and self.recording is None:
            raise ConfigError("log needs a folder to write to; call record(PATH) before the rounds")
        return [tool(self.recording.run.path, self.config) for tool in tools if self.recording]

    def _accuracies(self) -> list[float | None]:
        """Of the rounds so far, whoever played them; None where accuracy was not measured."""
        saved = self.recording.saved.metrics if self.recording else b""
        before = [line.get("accuracy") for line in json_lines(saved)]
        return [*before, *(report.accuracy for report in self.history if report.number > len(before))]

    def evaluate(self) -> Evaluation:
        """Evaluate the current weights on the test images."""
        with numerics(self.config.compute):
            result: Evaluation = self.server.evaluate(self.state)
        return result

    def model(self) -> nn.Module:
        """The network with the current weights, in eval mode; it takes normalised images."""
        network = self.trainer.plain_network()
        network.load_state_dict(self.trainer.whole(self.state.weights), strict=not self.method.all_private)
        return network.eval()

    def record(self, path: str | Path) -> Federation:
        """Record this federation in a new run directory: the rounds so far, and all that follow."""
        self._require_unrecorded()
        self.recording = Recording.create(RunDirectory(path), self)
        return self

    def resume(self, path: str | Path, *, exact: bool = False) -> Federation:
        """Resume a run that was recorded from the same objects, however it was stopped. Where the last bits
        may differ from here on, or already do, ``exact`` makes it an error.
        """
        self._require_unrecorded()
        if exact and (reason := differs(self.server.engine)):  # in rounds that nobody recorded
            raise RunError(
                f"the result would not be bit-identical: {reason}, and this federation used it; resume "
                "without exact=True, or from a new federation without such nodes"
            )
        self.recording = Recording.reopen(RunDirectory(path), self, exact=exact)
        if exact and isinstance(engine := self.server.engine, ClusterEngine):
            engine.options = dataclasses.replace(engine.options, exact=True)
        self.state = self.recording.saved.state
        self.history, self.best = [], None
        return self

    def _require_unrecorded(self) -> None:
        if self.recording is not None:
            raise RunError(f"this federation is already recorded in {self.recording.run.path}")
        if self.plays:
            raise RunError("rounds are running; record or resume before the loop, or after it has ended")

    def settle(self, folder: Path) -> None:
        """Store client states and pending updates in this folder."""
        self.trainer.store.folder = folder / "clients"
        self.server.store.folder = folder / "server"  # type: ignore[union-attr]
        self.server.spool = folder

    @property
    def scratch(self) -> Path | None:
        """The folder with client states while nothing is recorded."""
        return Path(self._scratch.name) if self._scratch else None

    def _scratch_folder(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="proxyfl-")
        return Path(self._scratch.name)

    def _remember(self, report: RoundReport) -> None:
        """Keep the report without its weights; of those, only the best round's."""
        before = choosing(self.best.metrics) if self.best else -1.0
        if report.accuracy is not None and choosing(report.metrics) > before:
            self.best = report
        kept = self.recording is None and self.config.keep.snapshot(
            report.number, self.config.federation.rounds
        )
        light = ServerState(report.number, {})
        snapshots = report.snapshots if kept else {}
        rows = report.rows if self.recording is None else []
        self.history.append(dataclasses.replace(report, state=light, snapshots=snapshots, rows=rows))


def _usual_network(data: Dataset) -> str:
    if data.encoded:
        return "linear"
    return "mlp" if data.is_vectors else "resnet8"


class _Taken(Observer):
    """An observer that holds a round's report until it is asked for."""

    def __init__(self) -> None:
        self.report: RoundReport | None = None

    def round_finished(self, report: RoundReport) -> None:
        self.report = report
