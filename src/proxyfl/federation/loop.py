"""The round loop: sample, train, fold, serve, evaluate, tell. Resume lives here, not in a flag:
a run is its state, and the loop goes on from whatever state it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from proxyfl.aggregation.base import Aggregator
from proxyfl.core.config import FederationSettings, KeepSettings, TrainSettings
from proxyfl.core.errors import BelowQuorum
from proxyfl.core.records import CPU
from proxyfl.core.spans import AVERAGE, EVALUATE, FOLD, span
from proxyfl.core.state import OVERDUE, Failure, ServerState, Task, Tensors, Update
from proxyfl.federation.evaluate import Evaluation
from proxyfl.federation.fold import Fold
from proxyfl.federation.own_training import OwnImages
from proxyfl.federation.pseudo_metrics import shares
from proxyfl.federation.records import RecordPrivacy
from proxyfl.federation.sampling import Population, Redraw, sample_clients
from proxyfl.federation.statistics import gather
from proxyfl.federation.traffic import Traffic
from proxyfl.federation.witness import Row, add_accuracy
from proxyfl.methods.base import Method
from proxyfl.methods.context import PerClientStore, ServerContext


class Engine(Protocol):
    """Gets client work done somewhere. Answers come in the order of the tasks, one for each. Only one that
    calls failures pending is given tasks that are overdue.

    One that computes in other processes of its own counts their CPU time in ``cpu_seconds``.
    """

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]: ...

    def close(self) -> None: ...


@dataclass
class RoundReport:
    """What observers get after a round; ``state`` is what a checkpoint must hold."""

    state: ServerState
    metrics: dict[str, Any]
    timing: dict[str, float]
    snapshots: Tensors = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    """What is noted of each client (``keep.clients``)."""

    @property
    def number(self) -> int:
        """Of the round, from 1."""
        return self.state.round

    @property
    def accuracy(self) -> float | None:
        """On the test images; None where it was not measured."""
        return self.metrics.get("accuracy")

    @property
    def validation(self) -> float | None:
        """Accuracy on the validation images; None where there are none or it was not measured."""
        found: dict[str, float] = self.metrics.get("validation", {})
        return found.get("accuracy")

    @property
    def losses(self) -> dict[str, float]:
        """Mean losses per step over all clients."""
        found: dict[str, float] = self.metrics["losses"]
        return found

    @property
    def pseudo(self) -> dict[str, float]:
        """Shares and accuracies of pseudo-labels; empty for methods that make none."""
        found: dict[str, float] = self.metrics["pseudo"]
        return found

    @property
    def clients(self) -> list[int]:
        """Those whose updates were used."""
        found: list[int] = self.metrics["clients"]
        return found

    def __repr__(self) -> str:
        measured = "not measured" if self.accuracy is None else f"accuracy {self.accuracy:.1%}"
        return f"<round {self.number}: {measured}, {len(self.clients)} clients>"


class Observer(Protocol):
    """Someone who follows a run. A class that inherits from it has only to say what it cares for."""

    def round_started(self, round: int, clients: list[int]) -> None:
        return None

    def answered(self, answer: Update | Failure) -> None:
        return None

    def round_finished(self, report: RoundReport) -> None:
        return None


@dataclass
class Server:
    """The server's side of a federation: everything a round needs that does not change between rounds."""

    method: Method
    aggregator: Aggregator
    population: Population
    engine: Engine
    evaluate: Callable[[ServerState], Evaluation]
    classes: int
    settings: FederationSettings
    train: TrainSettings
    keep: KeepSettings
    seed: int = 1
    device: str = "cpu"
    store: PerClientStore | None = None
    spool: Path | None = None
    validate: Callable[[ServerState], Evaluation] | None = None
    static: bool = False
    """Whether statistics of batch norm are gathered after each mean."""
    own: OwnImages | None = None
    """The labelled images that the server itself holds."""
    records: RecordPrivacy | None = None
    """Differential privacy of the clients' single images."""
    exposed: Population | None = None
    """Whose images it accounts for, where clients leave: all who ever took part."""

    def start(self, weights: Tensors) -> ServerState:
        """The state before the first round."""
        ctx = self.context(ServerState(0, weights))
        ctx.begun = False
        ctx.extras = self.method.start_all(ctx)
        if self.own is not None:
            self.method.prepare(ctx)
            if self.static and ctx.weights is not weights:
                gather(self, ctx, [], Traffic())
        return ServerState(0, ctx.weights, ctx.extras)

    def context(self, state: ServerState) -> ServerContext:
        """What the method's server hooks see of the round after ``state``."""
        return ServerContext(
            state.round + 1,
            self.seed,
            self.classes,
            torch.device(self.device),
            state.weights,
            dict(state.extras),
            state.weights,
            store=self.store,
            own=self.own,
        )

    def fold(
        self, ctx: ServerContext, state: ServerState, clients: list[int], times: Mapping[int, int]
    ) -> Fold:
        """What takes the answers of these clients, who train so many times."""
        return Fold(
            self.aggregator,
            self.method,
            ctx,
            state,
            clients,
            self.population,
            train=self.train,
            federation=self.settings,
            times=times,
            keep=replace(self.keep, clients="none") if self.records else self.keep,
            spool=self.spool,
        )

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep anything between rounds."""
        return self.method.keeps_state or self.train.keeps_momentum("clients")

    def able(self, clients: list[int]) -> list[int]:
        """The clients that this method can do something with."""
        labelled = self.population.labelled
        return [k for k in clients if labelled[k] or not self.method.needs_labels]


def play_round(
    server: Server, state: ServerState, observers: tuple[Observer, ...], redraw: Redraw | None = None
) -> ServerState:
    """One round. ``redraw`` asks others than those it would ask by itself; its metrics then say so, and late
    updates are no longer awaited.
    """
    if redraw is not None:
        state = replace(state, owed=())
    method, settings = server.method, server.settings
    started, round = time.perf_counter(), state.round + 1
    computed = _processor_time(server.engine)
    chosen = sample_clients(settings, server.seed, round, server.population, redraw)
    ctx, traffic, able = server.context(state), Traffic(), server.able(chosen)
    times = dict(zip(able, method.trainings(ctx, able), strict=True))
    asked = [client for client in able if times[client] and client not in state.owed]
    clients = [*asked, *state.owed]
    for observer in observers:
        observer.round_started(round, clients)

    fold = server.fold(ctx, state, clients, times)
    tasks = _tasks(method, ctx, state, {client: times[client] for client in asked}, fold, traffic)
    for answer, client in zip(server.engine.run(tasks), clients, strict=True):
        if isinstance(answer, Update):
            traffic.received(answer)
        elif answer.unsent:
            traffic.unsent(client)
        with span(FOLD):
            answer = fold.take(answer, client)
        for observer in observers:
            observer.answered(answer)
    trained = time.perf_counter()

    _require_quorum(settings.quorum, fold, clients)
    _serve(server, ctx, fold, traffic)
    rows, state = fold.rows(), _state_after(server, ctx, state, fold)
    served = time.perf_counter()

    measured, counts = _measure(server, state, rows)
    metrics = {
        "round": round,
        **measured,
        **(redraw.record() if redraw else {}),
        "clients": fold.used,
        **({"late": fold.late} if fold.late else {}),
        "idle": [client for client in chosen if client not in clients or client in fold.resting],
        "failed": {str(client): reason for client, reason in fold.failed.items()},
        "losses": fold.losses(),
        "pseudo": shares(fold.sums),
        **ctx.metrics,
        "traffic": traffic.record(),
    }
    done = time.perf_counter()
    timing = {"train": trained - started, "serve": served - trained, "evaluate": done - served}
    timing[CPU] = _processor_time(server.engine) - computed
    report = RoundReport(state, metrics, timing, {**ctx.snapshots, **counts}, rows)
    for observer in observers:
        observer.round_finished(report)
    return state


def _tasks(
    method: Method,
    ctx: ServerContext,
    state: ServerState,
    times: Mapping[int, int],
    fold: Fold,
    traffic: Traffic,
) -> Iterator[Task]:
    """A task for each client that trains, so many times; then those that owe an update are asked for it."""
    broadcast = {name: value for name, value in state.extras.items() if "/_" not in name}
    for client, count in times.items():
        personal, version = method.task_extras_all(ctx, client), state.versions.get(client, 0)
        task = Task(ctx.round, client, state.weights, broadcast, personal, version, fold.carry, times=count)
        traffic.sent(task)
        yield task
    for client in state.owed:
        yield Task(state.round, client, {}, purpose=OVERDUE)


def _state_after(server: Server, ctx: ServerContext, state: ServerState, fold: Fold) -> ServerState:
    """What a round leaves behind."""
    versions = state.versions
    if server.keeps_state:
        versions = versions.after(fold.used, ctx.round)
        versions = versions.after(fold.late, state.round) if fold.late else versions
    owed = tuple(sorted(fold.pending)) if server.settings.late == "next" else ()
    return ServerState(ctx.round, ctx.weights, ctx.extras, versions, fold.carry, owed)


def _processor_time(engine: Engine) -> float:
    elsewhere: float = getattr(engine, "cpu_seconds", 0.0)
    return time.process_time() + elsewhere


def _serve(server: Server, ctx: ServerContext, fold: Fold, traffic: Traffic) -> None:
    """What the server makes of a round's updates."""
    ctx.clients, ctx.samples = fold.clients, fold.samples
    if fold.settles:
        with span(AVERAGE):
            ctx.weights = fold.mean(ctx)
        ctx.snapshots = fold.snapshots(ctx.weights)
        ctx.extras = server.method.serve_all(ctx, fold.kept)
    if server.own is not None:
        server.method.refine(ctx)
    if server.static and (fold.settles or server.own is not None):
        gather(server, ctx, fold.answered, traffic)
    if counts := fold.counts():
        ctx.metrics["counts"] = counts
    holders = len(server.population.holders)
    if cost := server.aggregator.spent(ctx.round, server.settings, holders):
        ctx.metrics["privacy"] = cost
    if records := server.records:
        exposed = server.exposed or server.population
        spent = records.spent(ctx.round, server.train, server.method, exposed)
        ctx.metrics["record_privacy"] = spent


def _measure(server: Server, state: ServerState, rows: list[Row]) -> tuple[dict[str, Any], Tensors]:
    """What metrics and snapshots hold of a round's accuracy: nothing where it is not measured. The rows of
    clients get that on their own images, where some are held out.
    """
    if not server.settings.measures(state.round):
        return {}, {}
    with span(EVALUATE):
        result = server.evaluate(state)
    add_accuracy(rows, result.own)
    found: dict[str, Any] = {"accuracy": result.accuracy, "per_class": result.per_class}
    if server.keep.metrics == "all":
        found |= {"precision": result.precision, "measures": result.measures}
    if server.validate is not None:
        with span(EVALUATE):
            held = server.validate(state)
        add_accuracy(rows, held.own)
        found["validation"] = {"accuracy": held.accuracy}
        if server.keep.metrics == "all":
            found["validation"] |= held.measures
    return found, {"confusion": result.confusion}


def _require_quorum(quorum: int, fold: Fold, clients: list[int]) -> None:
    wanted = min(quorum, len(clients))
    if len(fold.answered) < wanted:
        raise BelowQuorum(fold.guard.round, len(clients), len(fold.answered), wanted, fold.failed)
