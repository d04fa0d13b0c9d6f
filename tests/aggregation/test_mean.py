"""The weighted mean: against numpy, with integers, in any order, through the disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.aggregation.mean import WeightedMean, weighted_mean
from proxyfl.aggregation.updates import Updates
from proxyfl.core.state import Tensors

weights_of = st.lists(st.integers(1, 10_000), min_size=1, max_size=9)


def updates(count: int, seed: int) -> list[Tensors]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "w": torch.randn(4, 3, generator=generator) * 10 ** float(k % 3),
            "steps": torch.randint(0, 1000, (), generator=generator),
        }
        for k in range(count)
    ]


def running(values: list[Tensors], weights: list[int]) -> Tensors:
    mean = WeightedMean(values[0])
    for value, weight in zip(values, weights, strict=True):
        mean.add(mean.layout.join(value), float(weight))
    return mean.mean()


def test_by_hand() -> None:
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(4)}
    mean = WeightedMean(first)
    mean.add(mean.layout.join(first), 1)
    mean.add(mean.layout.join({"n": torch.tensor(7), "w": torch.tensor([5.0, 10.0])}), 3)
    found = mean.mean()
    assert found["w"].tolist() == [4.0, 8.0]
    assert found["n"].item() == 6  # 25 / 4 = 6.25, to the nearest
    assert found["n"].dtype == torch.int64
    assert mean.total == 4


@settings(max_examples=60, deadline=None)
@given(weights_of, st.integers(0, 999))
def test_equals_numpy(weights: list[int], seed: int) -> None:
    values = updates(len(weights), seed)
    found = running(values, weights)
    stacked = np.stack([value["w"].double().numpy() for value in values])
    assert np.allclose(found["w"].numpy(), np.average(stacked, axis=0, weights=weights), rtol=1e-6)
    assert found["w"].dtype == torch.float32
    counters = np.average([int(value["steps"]) for value in values], weights=weights)
    assert found["steps"].dtype == torch.int64
    assert abs(int(found["steps"]) - counters) < 1 + 1e-9


@settings(max_examples=30, deadline=None)
@given(weights_of, st.integers(0, 999), st.randoms(use_true_random=False))
def test_order_changes_next_to_nothing_and_the_same_order_nothing(
    weights: list[int], seed: int, shuffle
) -> None:
    values = updates(len(weights), seed)
    first = running(values, weights)
    assert torch.equal(running(values, weights)["w"], first["w"])
    order = list(range(len(weights)))
    shuffle.shuffle(order)
    other = running([values[i] for i in order], [weights[i] for i in order])
    assert torch.allclose(other["w"], first["w"], rtol=1e-6, atol=1e-12)


def test_equal_updates_stay_what_they_are() -> None:
    value = updates(1, 5)[0]
    found = running([value] * 7, [3, 1, 9, 2, 2, 5, 130])
    assert torch.equal(found["w"], value["w"])
    assert torch.equal(found["steps"], value["steps"])


def test_huge_weights_do_not_drown_small_ones() -> None:
    values = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}]
    assert running(values, [2**40, 2**40])["w"].item() == 1.5


def test_updates_are_not_changed() -> None:
    values = updates(3, 1)
    before = [value["w"].clone() for value in values]
    running(values, [1, 2, 3])
    assert all(torch.equal(a, b["w"]) for a, b in zip(before, values, strict=True))


@settings(max_examples=20, deadline=None)
@given(weights_of, st.integers(0, 999))
def test_spooled_is_the_same_mean(
    tmp_path_factory: pytest.TempPathFactory, weights: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    values = updates(len(weights), seed)
    spooled = Updates(values[0], folder)
    for value in values:
        spooled.add(value)
    assert len(list(folder.glob("spool-*/*.safetensors"))) == len(weights)
    found = weighted_mean(spooled, [float(weight) for weight in weights])
    expected = running(values, weights)
    assert torch.equal(found["w"], expected["w"])
    assert torch.equal(found["steps"], expected["steps"])
    spooled.close()
    assert list(folder.iterdir()) == []


def test_a_wrong_number_of_weights_is_an_error() -> None:
    with pytest.raises(ValueError):
        weighted_mean([{"w": torch.ones(1)}], [0.5, 0.5])
