"""Rules against hostile updates: literal numbers, what holds for any numbers, and bounded memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.aggregation import updates as on_disk
from proxyfl.aggregation.change import change_length, scaled_down
from proxyfl.aggregation.coordinates import inner_range, median, trimmed_mean
from proxyfl.aggregation.krum import krum_choice, krum_scores
from proxyfl.aggregation.mean import weighted_mean
from proxyfl.aggregation.robust import hostile_of, withstood
from proxyfl.aggregation.updates import Updates

FIVE = torch.tensor([[1.0, -4.0], [2.0, 0.0], [100.0, 1.0], [3.0, 2.0], [-50.0, 90.0]], dtype=torch.float64)


def columns(low: int = 1, high: int = 9) -> st.SearchStrategy[Tensor]:
    number = st.floats(-1e6, 1e6, allow_nan=False, width=32)
    return st.integers(low, high).flatmap(
        lambda count: st.lists(st.lists(number, min_size=3, max_size=3), min_size=count, max_size=count).map(
            lambda rows: torch.tensor(rows, dtype=torch.float64)
        )
    )


def test_median_of_an_odd_and_an_even_number() -> None:
    assert median(FIVE).tolist() == [2.0, 1.0]
    assert median(FIVE[:4]).tolist() == [2.5, 0.5]


def test_trimmed_mean() -> None:
    assert trimmed_mean(FIVE, 1).tolist() == [2.0, 1.0]
    assert trimmed_mean(FIVE, 0).tolist() == pytest.approx([56 / 5, 89 / 5])
    assert trimmed_mean(FIVE, 2).tolist() == [2.0, 1.0]


def test_inner_range() -> None:
    low, high = inner_range(FIVE, 1)
    assert (low.tolist(), high.tolist()) == ([1.0, 0.0], [3.0, 2.0])


def test_krum_scores_by_hand() -> None:
    """Points 0, 1, 3 and 10 on a line; one hostile leaves one neighbour each: 1, 1, 4 and 49."""
    points = torch.tensor([[0.0], [1.0], [3.0], [10.0]], dtype=torch.float64)
    squares = (points - points.T).square()
    assert krum_scores(squares, 1).tolist() == [1.0, 1.0, 4.0, 49.0]
    assert krum_scores(squares, 0).tolist() == [10.0, 5.0, 13.0, 49.0 + 81.0]
    assert krum_choice(squares, 0, 1) == [1]
    assert krum_choice(squares, 1, 1) == [0], "of equals the first"
    assert krum_choice(squares, 1, 0) == [0, 1, 2]
    assert krum_choice(squares, 1, 9) == [0, 1, 2, 3]


def test_two_updates_have_no_neighbours_to_judge_by() -> None:
    assert krum_choice(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), 1, 1) == [0, 1]


@pytest.mark.parametrize(
    ("count", "share", "hostile", "by_krum"),
    [(20, 0.3, 6, 6), (10, 0.2, 2, 2), (8, 0.3, 3, 2), (3, 0.49, 2, 0), (1, 0.2, 1, 0), (30, 0.1, 3, 3)],
)
def test_how_many_are_reckoned_hostile(count: int, share: float, hostile: int, by_krum: int) -> None:
    assert hostile_of(count, share) == hostile
    assert withstood(count, share, spare=3) == by_krum
    assert withstood(count, share, spare=1) == min(hostile, (count - 1) // 2)


@given(columns())
def test_median_and_trimmed_mean_lie_within_the_values(values: Tensor) -> None:
    for found in (median(values), trimmed_mean(values, (len(values) - 1) // 2)):
        assert bool((found >= values.amin(0) - 1e-6).all())
        assert bool((found <= values.amax(0) + 1e-6).all())


@given(columns(3), st.integers(0, 2**32 - 1))
def test_the_order_of_updates_does_not_matter(values: Tensor, seed: int) -> None:
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(median(values), median(values[order]))
    assert torch.equal(trimmed_mean(values, 1), trimmed_mean(values[order], 1))


@given(columns())
def test_trimming_nothing_is_the_mean(values: Tensor) -> None:
    assert torch.allclose(trimmed_mean(values, 0), values.mean(0), rtol=1e-9, atol=1e-6)


@given(columns(3), st.integers(1, 4))
def test_a_minority_cannot_move_the_median_out_of_the_honest_range(values: Tensor, hostile: int) -> None:
    hostile = min(hostile, (len(values) - 1) // 2)
    wild = torch.cat([values[hostile:], torch.full((hostile, 3), 1e30, dtype=torch.float64)])
    honest = values[hostile:]
    for found in (median(wild), trimmed_mean(wild, hostile)):
        assert bool((found <= honest.amax(0) + 1e-6).all())


@settings(max_examples=50)
@given(st.integers(1, 4), st.floats(3, 1e4), st.integers(0, 2**32 - 1))
def test_krum_picks_the_cluster(hostile: int, far: float, seed: int) -> None:
    """Honest updates within 1 of each other, hostile ones far off and far from each other."""
    generator, count = torch.Generator().manual_seed(seed), 2 * hostile + 3
    honest = torch.rand(count - hostile, 4, generator=generator, dtype=torch.float64) / 4
    wild = torch.stack([torch.full((4,), far * (k + 1)) for k in range(hostile)]).double()
    order = torch.randperm(count, generator=generator)
    points = torch.cat([honest, wild])[order]
    squares = torch.cdist(points, points).square()
    expected = [place for place, origin in enumerate(order.tolist()) if origin < len(honest)]
    assert krum_choice(squares, hostile, 0) == expected
    assert krum_choice(squares, hostile, 1)[0] in expected


def test_clipping_shortens_the_change_and_leaves_whole_numbers() -> None:
    old = {"w": torch.tensor([1.0, 1.0]), "steps": torch.tensor(5)}
    new = {"w": torch.tensor([4.0, 5.0]), "steps": torch.tensor(9)}
    assert change_length(new, old) == 5.0
    near = scaled_down(new, old, 0.5)
    assert near["w"].tolist() == [2.5, 3.0]
    assert near["steps"].item() == 9
    assert scaled_down(new, old, 2.0)["w"].tolist() == [4.0, 5.0]


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6), st.floats(0.01, 10))
def test_no_change_is_longer_after_clipping(values: list[float], limit: float) -> None:
    old = {"w": torch.zeros(len(values))}
    new = {"w": torch.tensor(values)}
    length = change_length(new, old)
    found = scaled_down(new, old, limit / length if length > limit else 1.0)
    assert change_length(found, old) <= limit * (1 + 1e-5)


def test_the_length_of_a_change() -> None:
    old = {"a": torch.tensor([1.0, 2.0]), "n": torch.tensor(5), "b": torch.tensor([[0.0]])}
    new = {"a": torch.tensor([4.0, 2.0]), "n": torch.tensor(500), "b": torch.tensor([[4.0]])}
    assert change_length(new, old) == 5.0
    assert change_length({"n": torch.tensor(4)}, {"n": torch.tensor(1)}) == 0.0
    huge = {name: torch.tensor([1.2e154], dtype=torch.float64) for name in "ab"}
    assert change_length(huge, {name: torch.zeros(1) for name in "ab"}) == math.inf, "not an error"


def test_the_length_is_the_same_in_whatever_order_tensors_come() -> None:
    generator = torch.Generator().manual_seed(1)
    new = {str(k): torch.randn(50, generator=generator) for k in range(40)}
    old = {name: torch.zeros(50) for name in new}
    orders = [torch.randperm(40, generator=generator).tolist() for _ in range(20)]
    assert len({change_length({str(k): new[str(k)] for k in order}, old) for order in orders}) == 1


def some(count: int, folder: Path) -> tuple[Updates, list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    old = {"a.weight": torch.zeros(5, 2, 3), "b.bias": torch.ones(4), "steps": torch.tensor(0)}
    given = [
        {
            "steps": torch.tensor(11 + 3 * k),
            "a.weight": torch.randn(5, 2, 3, generator=generator),
            "b.bias": torch.randn(4, generator=generator),
        }
        for k in range(count)
    ]
    updates = Updates(old, folder)
    for tensors in given:
        updates.add(tensors)
    return updates, given


@pytest.mark.parametrize("block", [1, 7, 40, 1 << 20])
def test_blocks_of_any_size_give_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    updates, given = some(4, tmp_path)
    monkeypatch.setattr(on_disk, "BLOCK", block)
    result = updates.empty()
    largest = 0
    for rows, values in updates.blocks():
        largest = max(largest, values.numel())
        updates.put(result, rows, median(values))
    found = updates.typed(result)
    stacked = torch.stack([tensors["a.weight"] for tensors in given]).double()
    assert torch.equal(found["a.weight"], median(stacked.flatten(1)).view(5, 2, 3).float())
    assert found["steps"].dtype == torch.int64
    assert found["steps"].item() == 16, "15.5 rounded, not cut"
    assert largest <= max(block, 4 * 6), "a row of all updates is the least that is read"
    differences = [[change_length(a, b) ** 2 for b in given] for a in given]
    assert torch.allclose(updates.squares(), torch.tensor(differences, dtype=torch.float64))
    updates.close()
    assert not any(tmp_path.iterdir())


def test_updates_are_read_shortened(tmp_path: Path) -> None:
    updates, given = some(2, tmp_path)
    updates.factors = [1.0, 0.5]
    near = scaled_down(given[1], updates.old, 0.5)
    assert torch.equal(updates[1]["b.bias"], near["b.bias"])
    read = updates.empty()
    for rows, values in updates.blocks():
        updates.put(read, rows, values[1])
    assert torch.equal(read["b.bias"].float(), near["b.bias"])
    mean = weighted_mean(updates, [1.0, 3.0])
    assert torch.allclose(mean["b.bias"], (given[0]["b.bias"] + 3 * near["b.bias"]) / 4)
    assert [len(part) for part in (updates[:1], updates[-1:], list(updates))] == [1, 1, 2]
    assert torch.equal(updates[-2]["a.weight"], given[0]["a.weight"])
    updates.close()


def test_an_empty_room_leaves_nothing_behind(tmp_path: Path) -> None:
    Updates({"w": torch.zeros(1)}, tmp_path).close()
    assert not any(tmp_path.iterdir())
    assert math.isclose(change_length({}, {}), 0.0)
