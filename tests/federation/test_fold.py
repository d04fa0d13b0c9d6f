"""Folding answers: weights by rule, refusals as failures, what is kept and summed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.aggregation import Mean
from proxyfl.core.config import FederationSettings, KeepSettings, TrainSettings
from proxyfl.core.flat import Flat
from proxyfl.core.state import Failure, ServerState, Update
from proxyfl.federation.fold import Fold
from proxyfl.federation.sampling import Population
from proxyfl.methods import create
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext

STATE = ServerState(3, {"w": torch.zeros(1)}, carry={"w": torch.tensor([9.0])})
PEOPLE = Population(np.array([1, 2, 4]), np.array([9, 8, 6]))


def fold(method: Method | None = None, spool: Path | None = None, **federation: Any) -> Fold:
    return Fold(
        Mean(),
        method or create("fedavg"),
        server(),
        STATE,
        [0, 1, 2],
        PEOPLE,
        train=TrainSettings(),
        federation=FederationSettings(**federation),
        spool=spool,
    )


def answer(client: int, value: float, **changes: Any) -> Update:
    update = Update(4, client, 10, {"w": torch.tensor([value])}, metrics={"steps": 2.0, "loss/a": value})
    return dataclasses.replace(update, **changes)


def server() -> ServerContext:
    return ServerContext(4, 1, 3, torch.device("cpu"), {}, {})


def context(folded: Fold) -> ServerContext:
    found = server()
    found.clients, found.samples = folded.clients, folded.samples
    return found


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("size", (0 * 10 + 1 * 10 + 4 * 5) / 25),
        ("uniform", 5 / 3),
        # 2000 times the labelled images and the pool, which holds all of them
        ("release", (0 * 2010 + 1 * 4010 + 4 * 8005) / (2010 + 4010 + 8005)),
    ],
)
def test_weights_by_rule(rule: str, expected: float) -> None:
    folded = fold(weighting=rule)
    folded.take(answer(0, 0.0))
    folded.take(answer(1, 1.0))
    folded.take(answer(2, 4.0, samples=5))
    assert folded.mean(context(folded))["w"].item() == pytest.approx(expected, rel=1e-6)
    assert (folded.clients, folded.samples) == ([0, 1, 2], [10, 10, 5])
    weights = {"size": [10, 10, 5], "uniform": [1, 1, 1], "release": [2010, 4010, 8005]}
    assert folded.rule_weights == weights[rule]


def test_a_refused_update_becomes_a_failure_and_leaves_no_trace() -> None:
    folded = fold()
    folded.take(answer(0, 1.0))
    refused = folded.take(answer(1, float("nan"), metrics={"loss/a": 7.0}))
    assert refused == Failure(4, 1, "refused: 'w' holds values that are not finite")
    failed = folded.take(Failure(4, 2, "fell asleep"))
    assert failed == Failure(4, 2, "fell asleep")
    assert folded.failed == {1: "refused: 'w' holds values that are not finite", 2: "fell asleep"}
    assert folded.clients == [0]
    assert folded.mean(context(folded))["w"].item() == 1.0
    assert folded.losses() == {"a": 0.5}


def test_an_update_without_what_the_method_reads_is_refused_before_it_is_folded() -> None:
    folded = fold(create("fixmatch-gpl+prior"))
    bare = folded.take(answer(0, 5.0))
    assert bare == Failure(4, 0, "refused: 'prior/counts' is missing")
    folded.take(answer(1, 1.0, extras={"prior/counts": torch.ones(3)}))
    assert folded.mean(context(folded))["w"].item() == 1.0
    assert [sorted(kept) for kept in folded.kept] == [["prior/counts"]]


def test_losses_are_means_over_all_steps() -> None:
    folded = fold()
    folded.take(answer(0, 1.0, metrics={"steps": 3.0, "loss/a": 6.0, "pseudo/set_right": 4.0}))
    folded.take(answer(1, 1.0, metrics={"steps": 1.0, "loss/a": 2.0, "loss/b": 8.0, "pseudo/set_right": 5.0}))
    assert folded.losses() == {"a": 2.0, "b": 2.0}
    assert folded.sums["pseudo/set_right"] == 9.0


def test_names_that_one_client_makes_up_do_not_fill_the_log() -> None:
    folded = fold()
    for client, kind in ((0, "loss"), (1, "count")):
        made_up = {f"{kind}/made up {client} {k}": 1.0 for k in range(64)}
        assert isinstance(folded.take(answer(client, 1.0, metrics=made_up)), Update)
    folded.sums["loss/a"], folded.sums["count/b"] = 8.0, 5.0
    folded.senders.update({"loss/a": 2, "count/b": 2})
    assert len(folded.losses()) == len(folded.counts()) == 64
    assert (folded.losses()["a"], folded.counts()["b"]) == (8.0, 5.0)


def test_what_one_client_hands_to_the_next() -> None:
    folded = fold()
    folded.guard.carries = True
    assert folded.carry["w"].item() == 9.0
    folded.take(answer(0, 1.0, carry={"w": torch.tensor([5.0])}))
    assert folded.carry["w"].item() == 5.0
    folded.take(Failure(4, 1, "fell asleep"))
    folded.take(answer(2, float("inf"), carry={"w": torch.tensor([7.0])}))
    assert folded.carry["w"].item() == 5.0


class Favourite(Method):
    """Counts only the client that says so."""

    name = "favourite"
    needs_all_updates = True

    def receive(self, update: Update) -> dict[str, torch.Tensor]:
        return {"chosen": update.extras["favourite/chosen"]}

    def weights(self, ctx: ServerContext, kept: Any) -> list[float]:
        return [float(tensors["chosen"]) for tensors in kept]


def test_weights_that_need_all_updates(tmp_path: Path) -> None:
    folded = fold(Favourite(Favourite.Parameters()), tmp_path, weighting="uniform")
    for client, value in ((0, 3.0), (1, 5.0), (2, 7.0)):
        chosen = torch.tensor(float(client == 1))
        folded.take(answer(client, value, extras={"favourite/chosen": chosen}))
    assert len(list(tmp_path.glob("spool-*/*"))) == 3
    assert folded.mean(context(folded))["w"].item() == 5.0
    assert list(tmp_path.iterdir()) == []


def test_the_method_may_leave_its_weights_to_the_rule(tmp_path: Path) -> None:
    class Patient(Method):
        name = "patient"
        needs_all_updates = True

    for rule, expected in (("size", 2.0), ("uniform", 2.5)):
        folded = fold(Patient(Patient.Parameters()), tmp_path, weighting=rule)
        folded.take(answer(0, 1.0))
        folded.take(answer(2, 4.0, samples=5))
        assert folded.mean(context(folded))["w"].item() == pytest.approx(expected)


@pytest.mark.parametrize(("round", "kept"), [(1, True), (2, False), (50, True), (99, False), (100, True)])
def test_classifiers_are_kept_in_rounds_with_a_snapshot(round: int, kept: bool) -> None:
    sizes = np.array([3, 3])
    weights = {"classifier.weight": torch.zeros(2, 3), "trunk.w": torch.zeros(1)}
    state = ServerState(round - 1, weights)
    fold = Fold(
        Mean(),
        create("fedavg"),
        server(),
        state,
        [1, 0],
        Population(sizes, sizes),
        train=TrainSettings(),
        federation=FederationSettings(per_round=2),
        keep=KeepSettings(),
    )
    for client in (1, 0):
        rows = torch.full((2, 3), float(client))
        fold.take(Update(round, client, 3, {"classifier.weight": rows, "trunk.w": torch.ones(1)}))
    found = fold.snapshots({"classifier.weight": torch.full((2, 3), 0.5)})
    if not kept:
        assert found == {}
        return
    assert found["proxies/client_ids"].tolist() == [1, 0]
    assert found["proxies/clients"][:, 0, 0].tolist() == [1.0, 0.0]
    assert found["proxies/average"].unique().tolist() == [0.5]


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        (torch.zeros(4), "refused: 'prior/counts' has shape (4,), not (3,)"),
        (torch.tensor([1.0, -1.0, 0.0]), "refused: its class counts are negative"),
        (None, "refused: 'prior/counts' is missing"),
    ],
)
def test_extras_that_do_not_fit_are_refused(counts: torch.Tensor | None, reason: str) -> None:
    folded = fold(create("fixmatch-gpl+prior"))
    extras = {} if counts is None else {"prior/counts": counts}
    told = folded.take(answer(0, 1.0, extras=extras))
    assert isinstance(told, Failure)
    assert told.reason == reason
    folded.take(answer(1, 1.0, extras={"prior/counts": torch.ones(3)}))
    assert folded.clients == [1]


@pytest.mark.parametrize(
    ("average", "taken"),
    [
        ([0.2, 0.3, 0.5], True),
        ([1e-6, 1e-6, 1.0], True),
        ([-1e-6, 0.5, 0.5], False),
        ([-1e15, -1e15, -1e15], False),
        ([0.4, 0.4, 0.4], False),
        ([0.0, 0.0, 0.0], False),
    ],
)
def test_feddb_takes_distributions_only(average: list[float], taken: bool) -> None:
    """From any other vector its solver gives one client all the weight, or none at all."""
    told = fold(create("feddb")).take(answer(0, 1.0, extras={"feddb/average": torch.tensor(average)}))
    refused = Failure(4, 0, "refused: its average prediction is not a distribution")
    assert isinstance(told, Update) if taken else told == refused


def test_prototypes_of_fewer_than_no_images_are_refused() -> None:
    method = create("proto")
    assert any(part.name == "proto" for part in method.parts)
    extras = {"proto/means": torch.ones(3, 1), "proto/counts": torch.tensor([2.0, -1.0, 0.0])}
    weights = {"w": torch.ones(1), "classifier.weight": torch.zeros(3, 1)}
    state = ServerState(3, {"w": torch.zeros(1), "classifier.weight": torch.zeros(3, 1)})
    ctx = dataclasses.replace(server(), weights=state.weights)
    settings: Any = {"train": TrainSettings(), "federation": FederationSettings()}
    folded = Fold(Mean(), method, ctx, state, [0, 1], PEOPLE, **settings)
    told = folded.take(Update(4, 0, 10, weights, extras))
    assert told == Failure(4, 0, "refused: its class counts are negative")
    assert isinstance(
        folded.take(Update(4, 1, 10, weights, {**extras, "proto/counts": torch.ones(3)})), Update
    )


def test_what_is_kept_of_an_update_does_not_hold_the_rest_of_it() -> None:
    sent = {"w": torch.zeros(1000), "classifier.weight": torch.zeros(3, 2)}
    state = ServerState(3, sent)
    ctx = dataclasses.replace(server(), weights=state.weights)
    settings: Any = {"train": TrainSettings(), "federation": FederationSettings()}
    folded = Fold(Mean(), create("fixmatch-gpl+gpt"), ctx, state, [0], PEOPLE, **settings)
    given = Update(4, 0, 10, Flat.of({name: value + 1 for name, value in sent.items()}))
    assert isinstance(folded.take(given), Update)
    (kept,) = folded.kept
    assert [(value.tolist(), value.untyped_storage().nbytes()) for value in kept.values()] == [
        ([[1, 1]] * 3, 24)
    ]


class Clumsy(Method):
    """Trips over what it did not expect, as a plug-in may."""

    name = "clumsy"

    def receive(self, update: Update) -> dict[str, torch.Tensor]:
        return {"sum": update.extras["clumsy/a"] + torch.ones(3)}


def test_an_update_that_a_method_trips_over_is_refused_alone() -> None:
    folded = fold(Clumsy(Clumsy.Parameters()))
    told = folded.take(answer(0, 5.0, extras={"clumsy/a": torch.ones(2)}), 0)
    assert isinstance(told, Failure)
    assert told.reason.startswith("refused: the method cannot take it (RuntimeError")
    folded.take(answer(1, 1.0, extras={"clumsy/a": torch.ones(3)}), 1)
    assert folded.clients == [1]
    assert folded.mean(context(folded))["w"].item() == 1.0


class Wordless(Method):
    """Misses something and does not say what."""

    name = "wordless"

    def receive(self, update: Update) -> dict[str, torch.Tensor]:
        raise KeyError


def test_a_key_that_has_no_name_is_missing_too() -> None:
    told = fold(Wordless(Wordless.Parameters())).take(answer(0, 5.0), 0)
    assert told == Failure(4, 0, "refused: a key is missing")


def test_who_answers_for_another_is_told_under_its_own_name() -> None:
    folded = fold()
    told = folded.take(answer(1, 5.0), 0)
    assert told == Failure(4, 0, "refused: says it is client 1")
    folded.take(answer(1, 1.0), 1)
    assert (folded.clients, list(folded.failed)) == ([1], [0])
