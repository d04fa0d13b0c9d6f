"""FlexMatch, SAGE and FedLabel as methods: labels, masks and losses of whole steps, against slow loops."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from proxyfl.data.stream import Batch
from proxyfl.methods import create
from proxyfl.methods.context import ClientContext
from toyclient import CLASSES, Pool, batch, context, predictions, step

MANY, POOL = 20, 26
Rows = list[list[float]]


def best(row: list[float]) -> tuple[float, int]:
    """Confidence and label of one prediction."""
    return max(row), row.index(max(row))


def placed(seed: int, index: list[int]) -> Batch:
    """A batch whose unlabelled images have these places in the pool."""
    return dataclasses.replace(batch(3, len(index), seed=seed), u_index=torch.tensor(index))


def mean_cross_entropy(strong: Rows, labels: list[int], mask: list[bool], over: str) -> float:
    terms = [-math.log(row[c]) for row, c, chosen in zip(strong, labels, mask, strict=True) if chosen]
    return sum(terms) / (len(strong) if over == "batch" else len(terms))


# FlexMatch

FLEX_TAU = 0.55
STEPS = [
    placed(11, list(range(MANY))),
    placed(12, list(range(POOL - 1, POOL - 1 - MANY, -1))),
    placed(13, list(range(3, 3 + MANY))),
]


class SlowFlexMatch:
    """A memory and one image after the other."""

    def __init__(self, tau: float, warmup: bool) -> None:
        self.tau, self.warmup = tau, warmup
        self.last = [-1] * POOL

    def step(self, index: list[int], rows: Rows) -> tuple[list[int], list[bool]]:
        counts = [self.last.count(c) for c in range(CLASSES)]
        most = max(max(counts), self.last.count(-1)) if self.warmup else max(counts)
        labels, mask = [], []
        for row in rows:
            confidence, label = best(row)
            beta = counts[label] / most if most else 0.0
            labels.append(label)
            mask.append(confidence >= self.tau * beta / (2 - beta))
        for i, row in zip(index, rows, strict=True):
            confidence, label = best(row)
            if confidence >= self.tau:
                self.last[i] = label
        return labels, mask


def flex_round(options: dict[str, Any], slow: SlowFlexMatch, state: dict[str, Any]) -> tuple[Any, list[int]]:
    """A round of three steps, compared with the loop: what the client keeps, and how many each step chose."""
    method = create("flexmatch", options)
    ctx = context(method, pool=Pool(torch.zeros(POOL, 1, 3, 3)), state=state)
    method.begin_all(ctx)
    chosen = []
    for given in STEPS:
        outputs = step(ctx, given)
        teacher = predictions(2 if options.get("teacher", "local") == "local" else 1, given.u_weak)
        labels, mask = slow.step(given.u_index.tolist(), teacher)
        assert outputs.pseudo is not None
        assert outputs.pseudo.label.tolist() == labels
        assert outputs.pseudo.mask.tolist() == mask
        expected = mean_cross_entropy(predictions(2, given.u_strong), labels, mask, "batch")
        assert method.losses(outputs, ctx)["unlabelled"].item() == pytest.approx(expected, rel=1e-4)
        chosen.append(sum(mask))
    assert method.finish_all(ctx) == {}
    return ctx.state, chosen


@pytest.mark.parametrize("teacher", ["local", "global"])
@pytest.mark.parametrize("warmup", [True, False])
def test_flexmatch_over_two_rounds(warmup: bool, teacher: str) -> None:
    options = {"tau": FLEX_TAU, "warmup": warmup, "teacher": teacher}
    slow = SlowFlexMatch(FLEX_TAU, warmup)
    state, first = flex_round(options, slow, {})
    assert state["last"].tolist() == slow.last
    assert first[0] == MANY  # nothing is known, everything is accepted
    assert 0 < min(first[1:]) < MANY
    again, second = flex_round(options, slow, dict(state))
    assert again["last"].tolist() == slow.last
    assert second[0] < MANY  # the memory of the round before counts


def test_flexmatch_may_forget_between_rounds() -> None:
    options = {"tau": FLEX_TAU, "memory": "round"}
    state, first = flex_round(options, SlowFlexMatch(FLEX_TAU, True), {})
    _, second = flex_round(options, SlowFlexMatch(FLEX_TAU, True), state)
    assert second == first


def test_flexmatch_does_not_write_into_what_it_was_given() -> None:
    given = torch.full((POOL,), -1)
    flex_round({"tau": FLEX_TAU}, SlowFlexMatch(FLEX_TAU, True), {"last": given})
    assert given.tolist() == [-1] * POOL


# SAGE


def client(name: str, **options: Any) -> tuple[ClientContext, Batch]:
    return context(create(name, {"tau": 0.7, **options})), batch(3, MANY, seed=11)


def slow_target(local: list[float], teacher: list[float], kappa: float, mixing: float) -> list[float]:
    (sure, own), (other_sure, other) = best(local), best(teacher)
    target = [0.0] * CLASSES
    if sure < 0.7:
        target[other] = 1.0
        return target
    distance = min(max(abs(sure - other_sure) + 1e-6, 1e-6), 1.0)
    share = mixing or min(max(math.exp(-kappa * distance), 1e-6), 1.0)
    target[own] += share
    target[other] += 1 - share
    return target


@pytest.mark.parametrize(
    ("options", "kappa", "mixing"),
    [
        ({}, math.log(2) / 0.05, 0.0),
        ({"half": 0.2}, math.log(2) / 0.2, 0.0),
        ({"decay": 2.0}, 2.0, 0.0),
        ({"mixing": 0.5}, 1.0, 0.5),
    ],
)
def test_sage(options: dict[str, Any], kappa: float, mixing: float) -> None:
    ctx, given = client("sage", weight=3.0, **options)
    outputs = step(ctx, given)
    local, teacher = predictions(2, given.u_weak), predictions(1, given.u_weak)
    targets = [slow_target(p, q, kappa, mixing) for p, q in zip(local, teacher, strict=True)]
    # images on which only the global model is sure, of another class than the local one
    pairs = [(best(p), best(q)) for p, q in zip(local, teacher, strict=True)]
    assert any(own[0] < 0.7 <= other[0] and own[1] != other[1] for own, other in pairs)
    mask = [max(own[0], other[0]) >= 0.7 for own, other in pairs]
    assert not all(mask)
    assert outputs.pseudo is not None
    assert outputs.pseudo.target is not None
    assert outputs.pseudo.target.flatten().tolist() == pytest.approx(np.ravel(targets), abs=1e-5)
    assert outputs.pseudo.mask.tolist() == mask
    decided = [i for i, row in enumerate(targets) if max(row) > 0.5 + 1e-6]
    label = outputs.pseudo.label.tolist()
    assert [label[i] for i in decided] == [best(targets[i])[1] for i in decided]
    total = 0.0
    for row, target, chosen in zip(predictions(2, given.u_strong), targets, mask, strict=True):
        if chosen:
            smooth = [(t + 1e-10, p + 1e-10) for t, p in zip(target, row, strict=True)]
            total += sum(t * math.log(t / p) for t, p in smooth)
    found = ctx.method.losses(outputs, ctx)
    assert found.keys() == {"unlabelled"}
    assert found["unlabelled"].item() == pytest.approx(3 * total / MANY, rel=1e-4)


# FedLabel


def score(row: list[float], kind: str) -> float:
    if kind == "confidence":
        return max(row)
    if kind == "entropy":
        return sum(p * math.log(p) for p in row)
    return sum((p - 1 / CLASSES) ** 2 for p in row) / CLASSES


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("view", ["strong", "weak", None])
@pytest.mark.parametrize("kind", ["confidence", "entropy", "variance"])
def test_fedlabel(kind: str, view: str | None, masked: bool) -> None:
    chosen_view = {"view": view} if view else {}
    ctx, given = client(
        "fedlabel", weight=3.0, consistency=2.0, score=kind, mask_consistency=masked, **chosen_view
    )
    outputs = step(ctx, given)
    local, teacher = predictions(2, given.u_weak), predictions(1, given.u_weak)
    strong = predictions(2, given.u_strong)
    consulted = predictions(1, given.u_weak if view == "weak" else given.u_strong)
    labels, mask, drawn = [], [], 0.0
    for p, q, s, g in zip(local, teacher, strong, consulted, strict=True):
        labels.append(best(q)[1] if score(q, kind) >= score(p, kind) else best(p)[1])
        mask.append(max(best(p)[0], best(q)[0]) >= 0.7)
        if best(p)[1] == best(q)[1] and (mask[-1] or not masked):
            drawn += sum(a * math.log(a / b) for a, b in zip(g, s, strict=True))
    assert outputs.pseudo is not None
    assert outputs.pseudo.label.tolist() == labels
    assert outputs.pseudo.mask.tolist() == mask
    assert mask != [best(q)[0] >= 0.7 for q in teacher]
    assert mask != [best(p)[0] >= 0.7 for p in local]
    found = ctx.method.losses(outputs, ctx)
    assert found.keys() == {"unlabelled", "consistency"}
    expected = 3 * mean_cross_entropy(strong, labels, mask, "batch")
    assert found["unlabelled"].item() == pytest.approx(expected, rel=1e-4)
    assert found["consistency"].item() == pytest.approx(2 * drawn / MANY, rel=1e-4)
