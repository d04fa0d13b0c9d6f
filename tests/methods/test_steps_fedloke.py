"""FedLoKe as a method: the blend at the round's start and one step of both models, against slow loops.

Where a model moves is told by central differences of a loss that loops over the images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from torch import Tensor

from proxyfl.core.state import within
from proxyfl.data.stream import Batch
from proxyfl.methods import create
from proxyfl.methods.context import ClientContext
from toyclient import Toy, arrays, batch, context, logits_of, softmax

LABELLED, UNLABELLED = 5, 12
KEEP, DELTA, RAMP, ROUND, LR = 0.7, 0.9, 4, 3, 0.05
RISE = 0.75
Weights = Sequence[np.ndarray]


def given() -> Batch:
    return batch(LABELLED, UNLABELLED, seed=5)


def trained(**state: int) -> ClientContext:
    """A client of round 3 after the round's start; it kept network 7 (``kept``) or nothing yet."""
    method = create("fedloke", {"keep": KEEP, "delta": DELTA, "ramp": RAMP})
    kept = within("model", Toy(state["kept"]).state_dict()) if state else {}
    ctx = context(
        method, round=ROUND, state=kept, initial=Toy(4).state_dict(), lr=LR, momentum=0.0, weight_decay=0.0
    )
    method.begin_all(ctx)
    return ctx


def blended(own: int) -> list[np.ndarray]:
    pairs = zip(arrays(Toy(own).state_dict()), arrays(Toy(1).state_dict()), strict=True)
    return [KEEP * mine + (1 - KEEP) * received for mine, received in pairs]


def close(found: Weights, expected: Weights, tolerance: float = 1e-6) -> bool:
    return all(np.allclose(a, b, atol=tolerance) for a, b in zip(found, expected, strict=True))


def test_the_private_model_is_blended_with_the_one_received() -> None:
    assert close(arrays(trained(kept=7).memory["private"].state_dict()), blended(7))


def test_the_first_private_model_comes_from_the_seed() -> None:
    assert close(arrays(trained().memory["private"].state_dict()), blended(4))


def slow_supervised(weights: Weights, images: Tensor) -> float:
    rows = softmax(logits_of(weights, images))
    return -sum(math.log(row[c]) for row, c in zip(rows, given().y.tolist(), strict=True)) / LABELLED


def taught_rows(teacher: Weights) -> list[tuple[int, list[float]]]:
    rows = softmax(logits_of(teacher, given().u_weak)).tolist()
    return [(i, q) for i, q in enumerate(rows) if -sum(p * math.log(p) for p in q) < DELTA]


def slow_lesson(student: Weights, lessons: list[tuple[int, list[float]]]) -> float:
    rows = softmax(logits_of(student, given().u_strong)).tolist()
    pairs = [pair for i, row in lessons for pair in zip(row, rows[i], strict=True)]
    return sum(q * math.log(q / p) for q, p in pairs) / UNLABELLED


def descended(weights: Weights, loss: Callable[[Weights], float]) -> list[np.ndarray]:
    """Weights after a step of gradient descent, the gradient from central differences."""
    moved = [array.copy() for array in weights]
    for k, array in enumerate(weights):
        for place in np.ndindex(array.shape):
            beside = []
            for change in (1e-5, -1e-5):
                shifted = [other.copy() for other in weights]
                shifted[k][place] += change
                beside.append(loss(shifted))
            moved[k][place] -= LR * (beside[0] - beside[1]) / 2e-5
    return moved


def test_a_step_of_both_models() -> None:
    ctx = trained(kept=7)
    shared, private = arrays(ctx.model.state_dict()), blended(7)
    from_shared, from_private = taught_rows(shared), taught_rows(private)
    assert [i for i, _ in from_shared] != [i for i, _ in from_private]
    assert 0 < len(from_private) < UNLABELLED
    outputs = ctx.method.step(given(), ctx)

    supervised = slow_supervised(shared, given().x_strong)
    unlabelled = RISE * slow_lesson(shared, from_private)
    assert ctx.losses["supervised"].item() == pytest.approx(supervised, rel=1e-4)
    assert ctx.losses["unlabelled"].item() == pytest.approx(unlabelled, rel=1e-4)
    assert outputs.pseudo is not None
    assert outputs.pseudo.mask.nonzero()[:, 0].tolist() == [i for i, _ in from_private]
    named = softmax(logits_of(private, given().u_weak)).argmax(1)
    assert outputs.pseudo.label.tolist() == named.tolist()

    expected = descended(
        shared, lambda w: slow_supervised(w, given().x_strong) + RISE * slow_lesson(w, from_private)
    )
    assert close(arrays(ctx.model.state_dict()), expected, 2e-6)
    expected = descended(
        private, lambda w: slow_supervised(w, given().x) + RISE * slow_lesson(w, from_shared)
    )
    assert close(arrays(ctx.memory["private"].state_dict()), expected, 2e-6)

    assert ctx.method.finish_all(ctx) == {}
    kept = {name.removeprefix("model/"): value for name, value in ctx.state.items()}
    assert close(arrays(kept), arrays(ctx.memory["private"].state_dict()))
    assert close(arrays(ctx.method.upload(ctx)), arrays(ctx.model.state_dict()))


def test_without_unlabelled_images_both_learn_from_labels_alone() -> None:
    ctx = trained(kept=7)
    private = blended(7)
    alone = batch(LABELLED, 0, seed=5)
    ctx.method.step(alone, ctx)
    assert ctx.losses["unlabelled"].item() == 0.0
    expected = descended(private, lambda w: slow_supervised(w, alone.x))
    assert close(arrays(ctx.memory["private"].state_dict()), expected, 2e-6)
