"""Prototypes: their loss, the means of a client and the server's merge, against loops over single numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods.addons import proto

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_loss(z: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> float:
    total = 0.0
    for i in range(len(z)):
        c = int(labels[i])
        if present[c]:
            gaps = [(z[i, k] - prototypes[c, k]).item() ** 2 for k in range(z.shape[1])]
            total += sum(gaps) / len(gaps)
    return total / len(z) if len(z) else 0.0


def slow_means(z: Tensor, labels: Tensor, classes: int) -> tuple[list[list[float]], list[int]]:
    sums, counts = [[0.0] * z.shape[1] for _ in range(classes)], [0] * classes
    for row, c in zip(z.tolist(), labels.tolist(), strict=True):
        counts[c] += 1
        for k, value in enumerate(row):
            sums[c][k] += value
    return sums, counts


def slow_merge(means: Tensor, counts: Tensor, c: int, by_count: bool) -> list[float] | None:
    """The prototype of class ``c``, or nothing if no client has the class."""
    holders = [m for m in range(len(means)) if counts[m, c] > 0]
    if not holders:
        return None
    weights = [counts[m, c].item() if by_count else 1.0 for m in holders]
    mixed = [0.0] * means.shape[2]
    for m, weight in zip(holders, weights, strict=True):
        for k in range(means.shape[2]):
            mixed[k] += weight / sum(weights) * means[m, c, k].item()
    return mixed


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def integers(seed: int, high: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(high, size=shape))


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_loss(seed: int, classes: int) -> None:
    z, labels, prototypes = normal(seed, 30, 7), integers(seed, classes, 30), normal(seed + 100, classes, 7)
    present = integers(seed + 200, 3, classes) > 0
    present[labels[0]], present[labels[1]] = False, True
    expected = slow_loss(z, labels, prototypes, present)
    found = proto.prototype_loss(z, labels, prototypes, present)
    assert found.shape == ()
    assert found.item() == pytest.approx(expected, rel=1e-9)
    single = proto.prototype_loss(z.float(), labels, prototypes.float(), present)
    assert single.item() == pytest.approx(expected, rel=1e-5)


Z = torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
LABELS = torch.tensor([0, 2, 0, 1])
PROTOTYPES = torch.tensor([[0.0, 0.0], [9.0, 9.0], [3.0, 2.0]])


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ([True, True, True], (2.5 + 2.0 + 0.5 + 16.0) / 4),
        ([True, False, True], 1.25),  # the last element adds nothing, but counts among the four
        ([False, False, True], 0.5),
        ([False, False, False], 0.0),
    ],
)
def test_loss_of_four_elements(present: list[bool], expected: float) -> None:
    found = proto.prototype_loss(Z, LABELS, PROTOTYPES, torch.tensor(present))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_loss_of_nothing() -> None:
    none = torch.zeros(0, 2).requires_grad_()
    found = proto.prototype_loss(none, torch.zeros(0, dtype=torch.int64), PROTOTYPES, torch.ones(3).bool())
    assert found.item() == 0.0


def test_each_element_is_pulled_towards_its_own_prototype() -> None:
    z = Z.clone().requires_grad_()
    proto.prototype_loss(z, LABELS, PROTOTYPES, torch.tensor([True, False, True])).backward()
    assert z.grad is not None
    # 2 (z - prototype) / (2 coordinates x 4 elements)
    expected = [0.25, 0.5, 0.0, -0.5, 0.0, 0.25, 0.0, 0.0]
    assert z.grad.flatten().tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_sums_and_counts(seed: int, classes: int) -> None:
    z, labels = normal(seed, 40, 5), integers(seed, classes, 40)
    sums, counts = proto.class_means(z, labels, classes)
    expected, numbers = slow_means(z, labels, classes)
    assert sums.shape == (classes, 5)
    assert counts.tolist() == numbers
    for c in range(classes):
        assert sums[c].tolist() == pytest.approx(expected[c], rel=1e-6, abs=1e-6)


def test_sums_and_counts_of_four_elements() -> None:
    sums, counts = proto.class_means(Z, LABELS, 4)
    assert sums.tolist() == [[1.0, 3.0], [5.0, 5.0], [3.0, 0.0], [0.0, 0.0]]
    assert counts.tolist() == [2, 1, 1, 0]


def test_sums_and_counts_of_nothing() -> None:
    sums, counts = proto.class_means(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), 3)
    assert sums.tolist() == [[0.0, 0.0]] * 3
    assert counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("by_count", [False, True])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_merge(seed: int, classes: int, by_count: bool) -> None:
    means, counts = normal(seed, 4, classes, 3), integers(seed, 3, 4, classes) * 5
    counts[:, 0] = 0
    found, present = proto.merge_prototypes(means, counts, by_count=by_count)
    assert found.shape == (classes, 3)
    assert present.dtype == torch.bool
    assert bool(torch.isfinite(found).all())
    for c in range(classes):
        expected = slow_merge(means, counts, c, by_count)
        assert bool(present[c]) == (expected is not None)
        if expected is not None:
            assert found[c].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


# one client has classes 0 and 1, the other 0 and 2; what stands for a class that is missing is no mean
MEANS = torch.tensor([[[1.0, 2.0], [4.0, 4.0], [77.0, 77.0]], [[5.0, -2.0], [-99.0, 0.0], [0.5, 0.0]]])
COUNTS = torch.tensor([[3, 10, 0], [1, 0, 2]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_merge_of_two_clients(dtype: torch.dtype) -> None:
    found, present = proto.merge_prototypes(MEANS, COUNTS.to(dtype))
    assert found.tolist() == [[3.0, 0.0], [4.0, 4.0], [0.5, 0.0]]
    assert present.tolist() == [True, True, True]
    found, _ = proto.merge_prototypes(MEANS, COUNTS.to(dtype), by_count=True)
    assert found.flatten().tolist() == pytest.approx([2.0, 1.0, 4.0, 4.0, 0.5, 0.0], abs=1e-6)


@pytest.mark.parametrize("by_count", [False, True])
def test_a_class_of_no_client_has_no_prototype(by_count: bool) -> None:
    counts = torch.tensor([[2, 0, 0], [2, 0, 0]])
    found, present = proto.merge_prototypes(MEANS, counts, by_count=by_count)
    assert present.tolist() == [True, False, False]
    assert found[0].tolist() == [3.0, 0.0]
    assert proto.prototype_loss(Z[1:2], LABELS[1:2], found, present).item() == 0.0


def test_merge_of_one_client() -> None:
    found, present = proto.merge_prototypes(MEANS[:1], COUNTS[:1])
    assert found[:2].tolist() == [[1.0, 2.0], [4.0, 4.0]]
    assert present.tolist() == [True, True, False]
