"""Named tensors as few long ones."""

from __future__ import annotations

import pytest
import torch

from proxyfl.aggregation.mean import WeightedMean
from proxyfl.core import flat
from proxyfl.core.flat import Layout
from proxyfl.core.state import Update

TENSORS = {
    "a": torch.arange(6.0).view(2, 3),
    "n": torch.tensor(4),
    "b": torch.tensor([9.0, 8.0]),
    "d": torch.tensor([0.5], dtype=torch.float64),
    "none": torch.zeros(0, 3),
}


def test_one_long_tensor_for_each_dtype() -> None:
    layout = Layout(TENSORS)
    assert layout.rows == [("a", "b", "none"), ("n",), ("d",)]
    assert [long.tolist() for long in layout.join(TENSORS)] == [[0, 1, 2, 3, 4, 5, 9, 8], [4], [0.5]]


def test_none_is_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "LONGEST", 6)
    assert Layout(TENSORS).rows == [("a",), ("b", "none"), ("n",), ("d",)]
    monkeypatch.setattr(flat, "LONGEST", 1)
    assert Layout(TENSORS).rows == [("a",), ("b",), ("none",), ("n",), ("d",)]


@pytest.mark.parametrize("longest", [1, 6, 1 << 22])
def test_there_and_back(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "LONGEST", longest)
    layout = Layout(TENSORS)
    found = layout.part(layout.join(TENSORS))
    assert list(found) == list(TENSORS)
    assert all(torch.equal(found[name], value) for name, value in TENSORS.items())
    assert all(found[name].dtype == value.dtype for name, value in TENSORS.items())


def test_means_share_no_memory() -> None:
    ones = {"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(2, dtype=torch.float64)}
    mean = WeightedMean(ones)
    rows = mean.layout.join(ones)
    mean.add(rows, 2.0)
    found = mean.mean()
    assert [row.tolist() for row in rows] == [[1, 1, 1, 1]]  # what was given is as it was
    found["a"].zero_()
    assert found["b"].tolist() == [1, 1]
    assert found["b"].untyped_storage().nbytes() == 16


def test_where_names_lie() -> None:
    assert [places.tolist() for places in Layout(TENSORS).places({"b", "n"})] == [[6, 7], [0], []]


def test_an_update_is_joined_once_for_all_who_use_the_same_layout() -> None:
    update = Update(1, 0, 1, dict(reversed(TENSORS.items())))
    first, second = Layout(TENSORS), Layout(TENSORS)
    assert update.joined(first) is update.joined(second)
    assert [long.tolist() for long in update.joined(first)] == [[0, 1, 2, 3, 4, 5, 9, 8], [4], [0.5]]
    assert [long.tolist() for long in update.joined(Layout({"b": TENSORS["b"]}))] == [[9, 8]]
