"""Named tensors as few long ones."""

from __future__ import annotations

import pytest
import torch

from proxyfl.aggregation import flat
from proxyfl.aggregation.flat import Layout
from proxyfl.aggregation.mean import WeightedMean

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
    mean = WeightedMean()
    mean.add({"a": torch.ones(2, dtype=torch.float64), "b": torch.ones(2, dtype=torch.float64)}, 2.0)
    found = mean.mean()
    found["a"].zero_()
    assert found["b"].tolist() == [1, 1]
    assert found["b"].untyped_storage().nbytes() == 16
