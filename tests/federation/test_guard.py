"""The guard: what it refuses and in which words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.state import Update
from proxyfl.federation.guard import Guard, change_norm

SENT = {"w": torch.zeros(2, 3), "steps": torch.tensor(0)}


def guard(**options: Any) -> Guard:
    return Guard(4, SENT, {7: 10, 8: 5}, **options)


def update(**changes: Any) -> Update:
    weights = {"w": torch.ones(2, 3), "steps": torch.tensor(3)}
    good = Update(4, 7, 10, weights, {"prior/counts": torch.ones(3)}, {"steps": 3.0})
    return dataclasses.replace(good, **changes)


def refusal(given: Update, **options: Any) -> str:
    with pytest.raises(UpdateRefused) as caught:
        guard(**options).check(given)
    return str(caught.value)


def test_a_good_update_passes() -> None:
    guard().check(update())
    guard().check(update(samples=1))
    guard(max_norm=2.5).check(update())


def weights(**changes: Any) -> dict[str, Any]:
    return {**update().weights, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "belongs to round 3, not 4"),
        ({"client": 9}, "was not asked in this round"),
        ({"samples": 11}, "claims 11 images, registered 10"),
        ({"samples": 0}, "claims 0 images, registered 10"),
        ({"samples": -5}, "claims -5 images, registered 10"),
        ({"weights": {"w": torch.ones(2, 3)}}, "tensors missing: ['steps'], unknown: []"),
        ({"weights": weights(more=torch.ones(1))}, "tensors missing: [], unknown: ['more']"),
        ({"weights": weights(w=torch.ones(3, 2))}, "'w' has shape (3, 2), not (2, 3)"),
        ({"weights": weights(w=torch.ones(2, 3).double())}, "'w' is torch.float64, not torch.float32"),
        ({"weights": weights(steps=torch.tensor(3.0))}, "'steps' is torch.float32, not torch.int64"),
        ({"weights": weights(w=torch.full((2, 3), math.nan))}, "'w' holds values that are not finite"),
        ({"weights": weights(w=torch.full((2, 3), math.inf))}, "'w' holds values that are not finite"),
        ({"extras": {"a/b": torch.tensor([1.0, -math.inf])}}, "'a/b' holds values that are not finite"),
        ({"metrics": {"loss/x": math.nan}}, "its metrics are not finite"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    assert refusal(update(**changes)) == message


def test_an_answer_counts_once() -> None:
    strict = guard()
    strict.check(update())
    with pytest.raises(UpdateRefused, match="answered twice"):
        strict.check(update())
    strict.check(update(client=8, samples=5))


def test_a_refused_update_may_be_sent_again() -> None:
    strict = guard()
    with pytest.raises(UpdateRefused):
        strict.check(update(samples=99))
    strict.check(update())


def test_the_length_of_a_change() -> None:
    old = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(5), "b": torch.tensor([[0.0]])}
    new = {"a": torch.tensor([4.0, 2.0]), "n": torch.tensor(500), "b": torch.tensor([[4.0]])}
    assert change_norm(new, old) == 5.0


def test_too_long_a_change() -> None:
    # six ones: sqrt(6) = 2.449
    assert refusal(update(), max_norm=2.4) == "moves the weights by 2.45, more than 2.4"
