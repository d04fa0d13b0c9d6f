"""A quarter of the clients sends garbage, another kind each time: the run is the one in which they fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.core.errors import RunError
from proxyfl.core.state import Failure, ServerState, Task, Tensors, Update
from proxyfl.engines.pool import PoolEngine
from proxyfl.federation.client import numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.loop import Engine, Server, play_round
from proxyfl.federation.sampling import Population
from proxyfl.report.html.records import Records, failures
from toybox import Told, assemble, little_config, make_simulation, play, run_rounds, same_bits, same_state

CLIENTS, ROUNDS = 8, 3
BAD = (1, 6)
SLOW = pytest.mark.slow
METHODS = ("proxyfl", "flexmatch", "fedloke", "fedmatch")


def everywhere(tensors: Tensors, value: float) -> Tensors:
    return {name: torch.full_like(t, value) if t.is_floating_point() else t for name, t in tensors.items()}


def one_entry(tensors: Tensors, value: float) -> Tensors:
    """One number of millions is enough to spoil a mean."""
    name = next(name for name, tensor in tensors.items() if tensor.ndim > 1)
    spoiled = tensors[name].clone()
    spoiled.view(-1)[-1] = value
    return {**tensors, name: spoiled}


def without_one(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[1:])


def negative(tensors: Tensors, ending: str, value: float) -> Tensors:
    """Finite and short, but the square root of a variance is not."""
    return {name: torch.full_like(t, value) if name.endswith(ending) else t for name, t in tensors.items()}


KINDS: list[Callable[[Update], dict[str, Any]]] = [
    lambda update: {"weights": one_entry(update.weights, math.nan)},
    lambda update: {"weights": one_entry(update.weights, -math.inf)},
    lambda update: {"weights": everywhere(update.weights, 3.4e38)},
    lambda update: {"weights": {name: value[None] for name, value in update.weights.items()}},
    lambda update: {"weights": without_one(update.weights)},
    lambda update: {"weights": {**update.weights, "../../../weights": torch.ones(3)}},
    lambda update: {"weights": {name: value.double() for name, value in update.weights.items()}},
    lambda update: {"weights": negative(update.weights, "running_var", -1000.0)},
    lambda update: {"weights": negative(update.weights, "num_batches_tracked", -(10**14))},
    lambda update: {"samples": 0},
    lambda update: {"samples": -7},
    lambda update: {"samples": 10**300},
    lambda update: {"samples": 1e300},
    lambda update: {"samples": True},
    lambda update: {"round": update.round - 1},
    lambda update: {"client": (update.client + 1) % CLIENTS},
    lambda update: {"extras": {**update.extras, "prior/_secret": torch.ones(3)}},
    lambda update: {"metrics": {**update.metrics, "loss/supervised": 1.7e308}},
    lambda update: {"metrics": {**update.metrics, "pseudo/visits": -1e12}},
    lambda update: {"metrics": {**update.metrics, "loss/supervised": 1e19}},
    lambda update: {"metrics": {**update.metrics, "steps": 1e12}},
    lambda update: {"extras": {**update.extras, "prior/counts": torch.full((10,), 9e14)}},
    lambda update: {"carry": {"classifier.weight": torch.full((10, 64), math.nan)}},
]


def garbage(update: Update) -> Update:
    kind = KINDS[(update.round * CLIENTS + update.client) % len(KINDS)]
    return dataclasses.replace(update, **kind(update))


class Spoiling:
    """An engine whose bad clients train as all others do, and then send something else."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for answer in self.engine.run(tasks):
            bad = isinstance(answer, Update) and answer.client in BAD
            yield garbage(answer) if bad else answer  # type: ignore[arg-type]

    def close(self) -> None:
        self.engine.close()


class Failing(Spoiling):
    """An engine whose bad clients are never heard of."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for task in tasks:
            if task.client in BAD:
                yield Failure(task.round, task.client, "no battery")
            else:
                yield from self.engine.run([task])


def federation_of(method: str) -> tuple[Any, Any]:
    sizes = {"labelled": (2,) * CLIENTS, "unlabelled": (6,) * CLIENTS}
    more = {"method__helper_every": 2} if method == "fedmatch" else {}
    config = little_config(method, clients=CLIENTS, per_round=CLIENTS, rounds=ROUNDS, **more)
    return config, make_simulation(**sizes)


def result(told: Told) -> list[dict[str, Any]]:
    """What a run computed; that a refused update was sent all the same is in the traffic alone."""
    return [
        {name: value for name, value in report.metrics.items() if name not in ("failed", "traffic")}
        for report in told.reports
    ]


def check_same(spoilt: ServerState, failed: ServerState, told: Told, reference: Told, folder: Path) -> None:
    assert same_state(spoilt, failed)
    assert result(told) == result(reference)
    for report in told.reports:
        assert not set(report.metrics["clients"]) & set(BAD)
        assert set(report.metrics["failed"]) == set(map(str, BAD))
        assert all(reason.startswith("refused: ") for reason in report.metrics["failed"].values())
        assert len(json.dumps(report.metrics["failed"])) < 1000
    rows, count = failures(Records([report.metrics for report in told.reports]))
    assert count == len(rows) == len(BAD) * ROUNDS
    assert [row[:2] for row in rows] == [[r, str(k)] for r in range(1, ROUNDS + 1) for k in BAD]
    assert not set(spoilt.versions) & set(BAD)
    store = ClientStore(folder / "server")
    assert all(store.newest(client, ROUNDS) == {} for client in BAD)


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[ServerState, Told]]:
    known: dict[str, tuple[ServerState, Told]] = {}

    def of(method: str) -> tuple[ServerState, Told]:
        if method not in known:
            told = Told()
            folder = tmp_path_factory.mktemp(method)
            known[method] = play(*federation_of(method), folder, observers=[told], engine=Failing), told
        return known[method]

    return of


@pytest.mark.parametrize("method", ["proxyfl", *(pytest.param(name, marks=SLOW) for name in METHODS[1:])])
def test_garbage_is_the_same_as_no_answer(method: str, tmp_path: Path, with_failures: Any) -> None:
    told = Told()
    end = play(*federation_of(method), tmp_path, observers=[told], engine=Spoiling)
    check_same(end, with_failures(method)[0], told, with_failures(method)[1], tmp_path)


@SLOW
@pytest.mark.parametrize("method", METHODS)
def test_in_worker_processes_too(method: str, tmp_path: Path, with_failures: Any) -> None:
    config, simulation = federation_of(method)
    federation, trainer = assemble(tmp_path, config, simulation, workers=2)
    assert isinstance(federation.engine, PoolEngine)
    federation.engine = Spoiling(federation.engine)
    told = Told()
    try:
        with numerics(config.compute):
            end = run_rounds(federation, federation.start(trainer.initial_weights()), [told])
    finally:
        federation.engine.close()
    check_same(end, with_failures(method)[0], told, with_failures(method)[1], tmp_path)


class Answering:
    """An engine that has one answer, whatever it is asked."""

    def __init__(self, answer: Update) -> None:
        self.answer = answer

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for _ in tasks:
            yield self.answer

    def close(self) -> None:
        pass


def alone(population: Population, client: int) -> Population:
    """Nobody else holds an image."""
    here = np.arange(CLIENTS) == client
    return Population(population.labelled * here, population.unlabelled * here)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Server, ServerState, Update]:
    """Client 1 alone, and the honest answer of its first round."""
    config, simulation = federation_of("proxyfl")
    folder = tmp_path_factory.mktemp("honest")
    federation, trainer = assemble(folder, config, simulation, workers=0)
    start = federation.start(trainer.initial_weights())
    (update,) = federation.engine.run([Task(1, 1, start.weights, start.extras)])
    assert isinstance(update, Update)
    return dataclasses.replace(federation, population=alone(federation.population, 1)), start, update


def test_the_honest_answer_is_taken(answered: Any) -> None:
    federation, start, update = answered
    told = Told()
    federation = dataclasses.replace(federation, engine=Answering(update))
    play_round(federation, start, (told,))
    assert told.reports[0].metrics["clients"] == [1]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_each_kind_is_refused(answered: Any, kind: int) -> None:
    federation, start, update = answered
    spoilt = dataclasses.replace(update, **KINDS[kind](update))
    with pytest.raises(RunError, match=r"0 of 1 clients .*client 1: refused: "):
        play_round(dataclasses.replace(federation, engine=Answering(spoilt)), start, ())


def test_these_checks_can_fail(tmp_path: Path, with_failures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the guard's look at the numbers, garbage would reach the state."""
    monkeypatch.setattr("proxyfl.aggregation.guard.Guard.check", lambda self, update, asked=None: None)
    monkeypatch.setattr(
        "test_guard_garbage.KINDS", [lambda update: {"weights": one_entry(update.weights, 5.0)}]
    )
    end = play(*federation_of("proxyfl"), tmp_path, engine=Spoiling)
    assert not same_bits(end.weights, with_failures("proxyfl")[0].weights)
