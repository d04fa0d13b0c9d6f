"""The weighted mean of updates, folded one by one so that memory does not grow with participants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.aggregation.base import Accumulator, Aggregator, Gathered, Round, Settled
from proxyfl.core.flat import Layout
from proxyfl.core.state import Tensors, Update
from proxyfl.methods.context import ServerContext


@dataclass(frozen=True)
class Mean(Aggregator):
    """The mean, weighted as ``federation.weighting`` or the method says.

    >>> from proxyfl.aggregation import Mean
    >>> Mean()
    Mean()
    """

    name: ClassVar[str] = "mean"

    def begin(self, round: Round) -> Accumulator:
        return Gathered(self, round) if round.method.needs_all_updates else Running(round.state.weights)

    def combine(self, updates: Sequence[Tensors], weights: Sequence[float], old: Tensors) -> Tensors:
        return weighted_mean(updates, weights)


class Running(Accumulator):
    """The mean so far: nothing of single updates is kept."""

    def __init__(self, old: Tensors) -> None:
        self.mean = WeightedMean(old)

    def add(self, update: Update, weight: float) -> None:
        self.mean.add(update.joined(self.mean.layout), weight)

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        return Settled(self.mean.mean(), list(range(len(kept))), kept)


class WeightedMean:
    """A running weighted mean of tensors with the names, shapes and types of those given, buffers included.

    Sums are kept in float64, so that the order of magnitude of weights does not matter; integer tensors
    (step counters) come back as integers, rounded to the nearest.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self.total, self.layout = 0.0, Layout(like)
        self._sums: list[Tensor] = []
        self._dtypes = {name: value.dtype for name, value in like.items()}

    def add(self, rows: Sequence[Tensor], weight: float) -> None:
        """``rows`` are the tensors as the layout joins them."""
        self.total += weight
        terms = [long.to(torch.float64, copy=True).mul_(weight) for long in rows]
        if self._sums:
            for total, term in zip(self._sums, terms, strict=True):
                total += term
        else:
            self._sums = terms

    def mean(self) -> Tensors:
        means = self.layout.part([total / self.total for total in self._sums])
        return {
            name: (means[name] if dtype.is_floating_point else means[name].round()).to(dtype, copy=True)
            for name, dtype in self._dtypes.items()
        }


def weighted_mean(updates: Iterable[Mapping[str, Tensor]], weights: Sequence[float]) -> Tensors:
    """Of updates that are read one at a time; each needs a weight."""
    running: WeightedMean | None = None
    for update, weight in zip(updates, weights, strict=True):
        running = running or WeightedMean(update)
        running.add(running.layout.join(update), weight)
    return running.mean() if running else {}
