"""Category sets of the ablations (prior, uniform prior, top-1, top-5), against loops over single classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import create
from proxyfl.methods.addons.icpl import category_sets
from toybox import make_simulation, play, tiny_config

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_above(p: list[float], sure: bool, prior: list[float]) -> set[int]:
    likeliest = p.index(max(p))
    if sure:
        return {likeliest}
    return {c for c in range(len(p)) if p[c] > prior[c]} or {likeliest}


def slow_top(p: list[float], sure: bool, size: int) -> set[int]:
    """The classes with fewer than ``size`` classes likelier than them; without ties, ``size`` of them."""
    if sure:
        return {p.index(max(p))}
    return {c for c in range(len(p)) if sum(other > p[c] for other in p) < size}


def members(sets: Tensor) -> list[set[int]]:
    assert sets.dtype == torch.bool
    return [{c for c, inside in enumerate(row) if inside} for row in sets.tolist()]


def draw(seed: int, rows: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 5.0], size=(rows, 1))
    probs = torch.from_numpy(scale * rng.normal(size=(rows, classes))).softmax(1)
    confident = torch.from_numpy(rng.uniform(size=rows) < 0.3)
    return probs, confident, torch.from_numpy(rng.dirichlet(np.ones(classes)))


def addon(name: str, **icpl: Any) -> Any:
    method = create(name, {"icpl": icpl} if icpl else {})
    return next(part for part in method.addons if part.name == "icpl")


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_above_the_prior(seed: int, classes: int) -> None:
    probs, confident, prior = draw(seed, 50, classes)
    triples = zip(probs.tolist(), confident.tolist(), strict=True)
    expected = [slow_above(p, sure, prior.tolist()) for p, sure in triples]
    assert members(category_sets(probs, confident, prior)) == expected


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_above_a_uniform_prior(seed: int, classes: int) -> None:
    probs, confident, _ = draw(seed, 50, classes)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    expected = [
        {p.index(max(p))} if sure else {c for c in range(classes) if p[c] > 1 / classes}
        for p, sure in zip(probs.tolist(), confident.tolist(), strict=True)
    ]
    assert members(category_sets(probs, confident, uniform)) == expected


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_the_likeliest(seed: int, classes: int, size: int) -> None:
    probs, confident, prior = draw(seed, 50, classes)
    pairs = zip(probs.tolist(), confident.tolist(), strict=True)
    expected = [slow_top(p, sure, size) for p, sure in pairs]
    assert members(addon("icpl-only", sets=f"top{size}")._sets(probs, confident, prior)) == expected


@pytest.mark.parametrize("size", [1, 5])
def test_the_likeliest_by_name(size: int) -> None:
    probs, confident, prior = draw(0, 50, 10)
    pairs = zip(probs.tolist(), confident.tolist(), strict=True)
    expected = [slow_top(p, sure, size) for p, sure in pairs]
    assert members(addon(f"icpl-top{size}")._sets(probs, confident, prior)) == expected


def test_the_prior_of_the_uniform_ablation_stays_where_it_starts(tmp_path: Path) -> None:
    for name, moves in (("icpl-only", True), ("icpl-uniform", False)):
        state = play(tiny_config(name), make_simulation(), tmp_path / name)
        gap = (state.extras["prior/classes"] - 0.1).abs().max().item()
        assert (gap > 1e-5) == moves, name


LOW = torch.zeros(4, dtype=torch.bool)
PROBS = torch.tensor(
    [
        [0.40, 0.10, 0.30, 0.05, 0.04, 0.11],
        [0.02, 0.90, 0.03, 0.02, 0.02, 0.01],
        [0.10, 0.12, 0.14, 0.16, 0.18, 0.30],
        [0.25, 0.25, 0.20, 0.15, 0.15, 0.00],
    ],
    dtype=torch.float64,
)


def test_literal_sets_of_a_skewed_and_a_uniform_prior() -> None:
    prior = torch.tensor([0.5, 0.05, 0.3, 0.05, 0.05, 0.05], dtype=torch.float64)
    assert members(category_sets(PROBS, LOW, prior)) == [{1, 5}, {1}, {1, 3, 4, 5}, {1, 3, 4}]
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert members(category_sets(PROBS, LOW, uniform)) == [{0, 2}, {1}, {4, 5}, {0, 1, 2}]
    assert members(category_sets(PROBS, ~LOW, prior)) == [{0}, {1}, {5}, {0}]


def test_literal_sets_of_the_likeliest() -> None:
    prior = torch.full((6,), 1 / 6, dtype=torch.float64)
    top1, top5 = addon("icpl-only", sets="top1"), addon("icpl-only", sets="top5")
    assert members(top1._sets(PROBS[:3], LOW[:3], prior)) == [{0}, {1}, {5}]
    assert members(top5._sets(PROBS[::2], LOW[::2], prior)) == [{0, 1, 2, 3, 5}, {1, 2, 3, 4, 5}]
    assert members(top5._sets(PROBS, LOW, prior))[3] == {0, 1, 2, 3, 4}
    assert members(top5._sets(PROBS[::2], ~LOW[::2], prior)) == [{0}, {5}]


def test_five_of_fewer_classes_are_all_of_them() -> None:
    probs, prior = torch.tensor([[0.5, 0.3, 0.2]]), torch.full((3,), 1 / 3)
    assert members(addon("icpl-only", sets="top5")._sets(probs, LOW[:1], prior)) == [{0, 1, 2}]


def test_a_tie_with_the_whole_prior_leaves_the_likeliest() -> None:
    prior = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    assert members(category_sets(prior[None], LOW[:1], prior)) == [{1}]
    uniform = torch.full((4,), 0.25)
    assert members(category_sets(uniform[None], LOW[:1], uniform)) == [{0}]


def test_equal_to_the_prior_is_not_above_it() -> None:
    prior = torch.tensor([0.5, 0.25, 0.25])
    probs = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.375, 0.125]])
    assert members(category_sets(probs, LOW[:2], prior)) == [{2}, {1}]


def test_no_rows() -> None:
    sets = category_sets(torch.zeros(0, 3), LOW[:0], torch.full((3,), 1 / 3))
    assert sets.shape == (0, 3)
