"""Named tensors as few long ones."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from proxyfl.aggregation.mean import WeightedMean
from proxyfl.core import flat
from proxyfl.core.flat import Flat, Layout, compact
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


def test_flat_tensors_are_views_of_their_long_ones() -> None:
    flat_ones = Flat.of(TENSORS)
    assert list(flat_ones) == list(TENSORS)
    assert all(torch.equal(flat_ones[name], value) for name, value in TENSORS.items())
    update = Update(1, 0, 1, flat_ones)
    assert update.joined(Layout(TENSORS)) is flat_ones.long
    flat_ones["b"].fill_(7)
    assert [long.tolist() for long in flat_ones.long] == [[0, 1, 2, 3, 4, 5, 7, 7], [4], [0.5]]
    assert TENSORS["b"].tolist() == [9, 8]


def test_flat_tensors_are_copies_in_logical_order_without_a_graph() -> None:
    strided = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
    found = Flat.of({"w": strided.requires_grad_()})
    assert found["w"].is_contiguous()
    assert not found["w"].requires_grad
    assert found.long[0].tolist() == list(range(24))


@pytest.mark.parametrize(
    "other", [{"a": torch.zeros(3, 2)}, {"b": torch.zeros(2).double()}, {"x": TENSORS["b"]}]
)
def test_another_shape_type_or_name_is_another_layout(other: dict[str, torch.Tensor]) -> None:
    assert Layout(TENSORS) == Layout(dict(TENSORS))
    assert Layout(TENSORS) != Layout(TENSORS | other)
    assert Layout(TENSORS) != Layout(dict(reversed(TENSORS.items())))


def test_names_of_flat_tensors_are_fixed() -> None:
    given = Flat.of(TENSORS)
    with pytest.raises(TypeError, match="dict"):
        given["b"] = torch.zeros(2)
    with pytest.raises(TypeError, match="dict"):
        given.pop("b")
    with pytest.raises(TypeError, match="dict"):
        given |= {"b": torch.zeros(2)}
    assert type(given | {}) is dict
    with pytest.raises(ValueError, match="float64"):
        Flat(given.layout, [long.double() for long in given.long])


@pytest.mark.parametrize("way", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_copies_of_flat_tensors_are_flat(way) -> None:  # type: ignore[no-untyped-def]
    found = way(Flat.of(TENSORS))
    assert isinstance(found, Flat)
    found["b"].fill_(1)
    assert found.long[0].tolist() == [0, 1, 2, 3, 4, 5, 1, 1]


def test_who_keeps_a_part_does_not_keep_the_whole() -> None:
    whole = Flat.of(TENSORS)
    kept = compact({"b": whole["b"], "own": TENSORS["b"]})
    assert kept["b"].tolist() == [9, 8]
    assert kept["b"].untyped_storage().nbytes() == 8
    assert kept["own"] is TENSORS["b"]
