"""Is a difference between two methods more than noise? A bootstrap over the seeds that both have run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

Pair = TypeVar("Pair", int, tuple[int, str, str])
"""What makes two runs a pair: the seed, or also the weights they start from and their precision."""

RESAMPLES = 10_000
LEVEL = 0.95
SEED = 20_240_611
"""Of the resampling, so that a table comes out the same each time."""

FEWEST = 3
"""Pairs below which no interval is claimed."""

PLACES = 9
"""Decimals of a difference that mean something: sums of accuracies that are equal may differ after them."""

EVERY_FLIP = 14
"""Pairs up to which every choice of signs is tried; beyond, as many as there are resamples."""


@dataclass(frozen=True)
class Difference:
    """A mean difference over pairs; ``low`` and ``high`` bound the interval where one is claimed, ``chance``
    is how often pairs without any real difference would be as far apart.
    """

    mean: float
    pairs: int
    low: float | None = None
    high: float | None = None
    chance: float = 1.0
    family: int = 1
    """Comparisons that were named and tested together; ``chance`` is then corrected for them."""
    less_is_better: bool = False

    @property
    def verdict(self) -> str:
        """``noise`` where the interval contains 0 or chance explains it; what rests on few pairs says so.

        The interval alone would be wrong too often: it misses 0 by chance in 16 % of cases with 6 pairs.
        """
        if self.low is None or self.high is None:
            return "too few seeds"
        if self.low <= 0 <= self.high or (self.enough and self.chance > 1 - LEVEL):
            return "noise"
        word = "better" if (self.mean > 0) is not self.less_is_better else "worse"
        return word if self.enough else f"{word}, few seeds"

    @property
    def enough(self) -> bool:
        """Whether so many pairs can rule out chance at all, if every difference has the same sign."""
        return self.family * one_sign(self.pairs) <= 1 - LEVEL


def one_sign(pairs: int) -> float:
    """How often pairs without any real difference all have the same sign."""
    return 2.0 ** (1 - pairs)


def paired_difference(ours: Mapping[Pair, float], theirs: Mapping[Pair, float]) -> Difference | None:
    """Ours minus theirs over the seeds that both have; None where there is no such seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    differences = [_rounded(ours[seed] - theirs[seed]) for seed in seeds]
    mean = statistics.fmean(differences)
    if len(seeds) < FEWEST:
        return Difference(mean, len(seeds))
    low, high = bootstrap_interval(differences)
    return Difference(mean, len(seeds), _rounded(low), _rounded(high), sign_flip_chance(differences))


def _rounded(value: float) -> float:
    return round(value, PLACES) + 0.0  # no minus before a zero


def bootstrap_interval(
    values: Sequence[float], level: float = LEVEL, resamples: int = RESAMPLES, seed: int = SEED
) -> tuple[float, float]:
    """The percentile interval of the mean: its quantiles over resamples drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    means = np.asarray(values, dtype=np.float64)[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_chance(values: Sequence[float]) -> float:
    """The share of all choices of signs with which the mean is at least as far from 0."""
    size = np.abs(np.asarray(values, dtype=np.float64))
    if len(size) <= EVERY_FLIP:
        flips = np.arange(2 ** len(size))[:, None] >> np.arange(len(size)) & 1
    else:
        drawn = np.random.default_rng(SEED).integers(0, 2, size=(RESAMPLES, len(size)))
        flips = np.concatenate([(np.asarray(values) > 0)[None], drawn])  # the pairs as they are count too
    means = np.where(flips, size, -size).mean(axis=1)
    return float(np.mean(np.abs(means) >= abs(statistics.fmean(values)) - 10.0**-PLACES))


def holm(found: Sequence[Difference]) -> list[Difference]:
    """The differences of one family, each chance corrected by Holm's step-down rule: the smallest times their
    number, the next times one less, and so on, never falling and never above 1.
    """
    order = sorted(range(len(found)), key=lambda place: found[place].chance)
    corrected, reached = list(found), 0.0
    for step, place in enumerate(order):
        reached = max(reached, min(1.0, (len(found) - step) * found[place].chance))
        corrected[place] = replace(found[place], chance=reached, family=len(found))
    return corrected


def warning(pairs: int) -> str:
    """What an interval over so few pairs is worth; empty where there are enough."""
    if pairs < FEWEST or one_sign(pairs) <= 1 - LEVEL:
        return ""
    return (
        f"{pairs} pairs are few: without any real difference, all {pairs} would have the same sign, and the "
        f"interval would exclude 0, in at least {100 * one_sign(pairs):.0f} % of cases"
    )
