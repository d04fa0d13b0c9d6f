"""Clipping: no client moves the weights further than others may.

    x_i <- g + min(1, C / ||x_i - g||) (x_i - g)      g the weights that were sent out

C is a length, and updates are clipped as they arrive; or a multiple of the round's median length, and they
wait for it on disk.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass, field
from typing import ClassVar

from proxyfl.aggregation.base import Accumulator, Aggregator, Around, Gathered, Passing, Round, Settled, like
from proxyfl.aggregation.change import change_length, scaled_down
from proxyfl.aggregation.mean import Mean
from proxyfl.core.config import AggregationSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Tensors, Update
from proxyfl.methods.context import ServerContext


@dataclass(frozen=True)
class Clip(Around):
    """Changes of weights longer than ``length`` are clipped to it, before ``inner`` combines them.

    >>> from proxyfl.aggregation import Clip, Krum
    >>> Clip(2.0, by="median", inner=Krum(hostile=0.3))
    Clip(length=2.0, by='median', inner=Krum(hostile=0.3, keep=0))
    """

    length: float = like(AggregationSettings, "aggregation", "clip", default=1.0)
    by: str = like(AggregationSettings, "aggregation", "clip_by")
    inner: Aggregator = field(default_factory=Mean)
    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.length:
            raise ConfigError("aggregation.clip = 0 would remove every change; give a norm above 0")
        if self.inner.private:
            raise ConfigError("differential privacy has its own clipping; leave out the other one")
        if isinstance(self.inner, Around):
            name = type(self.inner).__name__
            raise ConfigError(f"updates are clipped before anything else: Clip(…) goes inside {name}(…)")
        gathers = isinstance(self.inner, Mean) or type(self.inner).begin is Aggregator.begin
        if self.by == "median" and not gathers:
            name = type(self.inner).__name__
            raise ConfigError(f"{name} cannot clip by the median norm; use by='length'")

    def begin(self, round: Round) -> Accumulator:
        if self.by == "median":
            return ClippedByMedian(self, round)
        return ClippedByLength(self.length, self.inner.begin(round), round.state.weights)


class ClippedByLength(Passing):
    """Clips updates on their way to another accumulator."""

    def __init__(self, length: float, inner: Accumulator, old: Tensors) -> None:
        super().__init__(inner, old)
        self.length = length

    def admit(self, update: Update) -> Update:
        return clipped(super().admit(update), self.old, self.length)


class ClippedByMedian(Gathered):
    """Clips updates when all have come and the median of their lengths is known."""

    def __init__(self, clip: Clip, round: Round) -> None:
        super().__init__(clip.inner, round)
        self.multiple = clip.length
        self.lengths: list[float] = []

    def add(self, update: Update, weight: float) -> None:
        super().add(update, weight)
        self.lengths.append(change_length(update.weights, self.updates.old))

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        if self.lengths:
            limit = self.multiple * statistics.median(self.lengths)
            self.updates.factors = [limit / length if length > limit else 1.0 for length in self.lengths]
        return super().settle(ctx, kept)


def clipped(update: Update, old: Tensors, length: float) -> Update:
    """The update with its change of weights clipped to ``length`` where it is longer."""
    found = change_length(update.weights, old)
    if found <= length:
        return update
    return dataclasses.replace(update, weights=scaled_down(update.weights, old, length / found))
