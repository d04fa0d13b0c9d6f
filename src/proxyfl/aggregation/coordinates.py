"""Median and trimmed mean of each coordinate (Yin et al., ICML 2018).

What a method reads of single updates is drawn into the range that the rule trusts: what trimming leaves over,
the middle half with the median.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.aggregation.base import Gathered, Settled, like
from proxyfl.aggregation.coverage import reads_updates
from proxyfl.aggregation.robust import RobustRule, reckoned
from proxyfl.core.config import AggregationSettings
from proxyfl.core.state import Tensors
from proxyfl.methods.context import ServerContext


def median(values: Tensor) -> Tensor:
    """Of each column of (M, N)."""
    ordered = values.sort(0).values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def trimmed_mean(values: Tensor, cut: int) -> Tensor:
    """Of each column of (M, N), without its ``cut`` smallest and largest values."""
    return values.sort(0).values[cut : len(values) - cut].mean(0)


def inner_range(values: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each column of (M, N) once ``cut`` are gone at either end."""
    ordered = values.sort(0).values
    return ordered[cut], ordered[len(values) - 1 - cut]


class CoordinateRule(RobustRule):
    """A rule that looks at one coordinate at a time."""

    draws_in = True

    @abstractmethod
    def cut(self, gathered: Gathered, ctx: ServerContext) -> int:
        """How many values at either end are not trusted."""

    @abstractmethod
    def middle(self, values: Tensor, cut: int) -> Tensor:
        """What the columns of (M, N) come to."""

    def decide(self, gathered: Gathered, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        updates, cut, reads = gathered.updates, self.cut(gathered, ctx), reads_updates(gathered.method)
        result, low, high = updates.empty(), updates.empty(), updates.empty()
        for rows, values in updates.blocks():
            updates.put(result, rows, self.middle(values, cut))
            if reads:
                for bound, part in zip((low, high), inner_range(values, cut), strict=True):
                    updates.put(bound, rows, part)
        if reads:
            kept = drawn_in(gathered, updates.typed(low), updates.typed(high), cut)
        return Settled(updates.typed(result), list(range(len(kept))), kept)


@dataclass(frozen=True)
class Median(CoordinateRule):
    """The median of each coordinate.

    >>> from proxyfl.aggregation import Median
    >>> Median()
    Median()
    """

    name: ClassVar[str] = "median"

    def cut(self, gathered: Gathered, ctx: ServerContext) -> int:
        return len(gathered.updates) // 4

    def middle(self, values: Tensor, cut: int) -> Tensor:
        return median(values)


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """The mean of each coordinate without its smallest and largest values.

    >>> from proxyfl.aggregation import TrimmedMean
    >>> TrimmedMean(0.3)
    TrimmedMean(hostile=0.3)
    """

    hostile: float = like(AggregationSettings, "aggregation", "hostile")
    name: ClassVar[str] = "trimmed"

    def cut(self, gathered: Gathered, ctx: ServerContext) -> int:
        return reckoned(gathered, ctx, self.hostile, spare=1)

    def middle(self, values: Tensor, cut: int) -> Tensor:
        return trimmed_mean(values, cut)


def drawn_in(gathered: Gathered, low: Tensors, high: Tensors, cut: int) -> list[Tensors]:
    """What the method keeps of each update once its weights and extras are within what is trusted."""
    names = set.intersection(*(set(header.extras) for header in gathered.headers))
    ranges = {
        name: inner_range(torch.stack([header.extras[name] for header in gathered.headers]), cut)
        for name in sorted(names)
    }
    found = []
    for place, header in enumerate(gathered.headers):
        weights = {
            name: value.clamp(low[name], high[name]) for name, value in gathered.updates[place].items()
        }
        extras = {name: header.extras[name].clamp(*ranges[name]) for name in ranges}
        found.append(gathered.read(place, weights, extras))
    return found
