"""Losses on unlabelled images: numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.methods.losses import masked_cross_entropy, masked_divergence, masked_mean

# rows: ln(1, 3) -> p = (1/4, 3/4); ln(1, 1) -> (1/2, 1/2); ln(4, 1) -> (4/5, 1/5)
LOGITS = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [math.log(4), 0.0]])
LABEL = torch.tensor([1, 0, 1])
TERMS = [math.log(4 / 3), math.log(2), math.log(5)]


@pytest.mark.parametrize(
    ("mask", "over", "expected"),
    [
        ([1, 1, 1], "batch", sum(TERMS) / 3),
        ([1, 0, 1], "batch", (TERMS[0] + TERMS[2]) / 3),
        ([1, 0, 1], "selected", (TERMS[0] + TERMS[2]) / 2),
        ([0, 1, 0], "selected", TERMS[1]),
        ([0, 0, 0], "batch", 0.0),
        ([0, 0, 0], "selected", 0.0),
    ],
)
def test_cross_entropy(mask: list[int], over: str, expected: float) -> None:
    found = masked_cross_entropy(LOGITS, LABEL, torch.tensor(mask).bool(), over)
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-12)
    target = torch.nn.functional.one_hot(LABEL, 2).float()
    smoothed = masked_divergence(LOGITS, target, torch.tensor(mask).bool(), over)
    assert smoothed.item() == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_literal_numbers() -> None:
    everything = torch.ones(3).bool()
    assert masked_cross_entropy(LOGITS, LABEL, everything).item() == pytest.approx(0.863422, abs=1e-6)
    assert masked_mean(
        torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True])
    ).item() == pytest.approx(7 / 3)
    assert (
        masked_mean(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True]), "selected").item()
        == 3.5
    )


def test_divergence_of_a_soft_target() -> None:
    target = torch.tensor([[0.25, 0.75], [0.25, 0.75], [0.5, 0.5]])
    second = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    third = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    found = masked_divergence(LOGITS, target, torch.ones(3).bool())
    assert found.item() == pytest.approx((0 + second + third) / 3, rel=1e-5)


def test_the_smoothing_bounds_a_one_hot_target_on_a_sure_mistake() -> None:
    logits = torch.tensor([[200.0, -200.0]])
    found = masked_divergence(logits, torch.tensor([[0.0, 1.0]]), torch.ones(1).bool())
    assert found.item() == pytest.approx(-math.log(1e-10), rel=1e-5)


def slow(logits: list[list[float]], label: list[int], mask: list[bool], over: str) -> float:
    total = 0.0
    for row, y, m in zip(logits, label, mask, strict=True):
        if m:
            total -= row[y] - math.log(sum(math.exp(g) for g in row))
    return total / max(1, len(mask) if over == "batch" else sum(mask))


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_against_a_slow_version(data: st.DataObject) -> None:
    rows, classes = data.draw(st.integers(1, 6)), data.draw(st.integers(2, 5))
    number = st.floats(-8, 8)
    logits = [[data.draw(number) for _ in range(classes)] for _ in range(rows)]
    label = [data.draw(st.integers(0, classes - 1)) for _ in range(rows)]
    mask = [data.draw(st.booleans()) for _ in range(rows)]
    for over in ("batch", "selected"):
        found = masked_cross_entropy(torch.tensor(logits), torch.tensor(label), torch.tensor(mask), over)
        assert found.item() == pytest.approx(slow(logits, label, mask, over), rel=1e-4, abs=1e-5)


def test_excluded_rows_get_no_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    masked_cross_entropy(logits, LABEL, torch.tensor([True, False, True])).backward()
    assert logits.grad is not None
    assert logits.grad[1].tolist() == [0.0, 0.0]
    assert logits.grad[0].tolist() == pytest.approx([0.25 / 3, -0.25 / 3])


def test_no_rows_at_all() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    for over in ("batch", "selected"):
        assert masked_cross_entropy(torch.zeros(0, 3), none, none.bool(), over).item() == 0.0
