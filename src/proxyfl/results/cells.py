"""Runs that differ in nothing but the seed: their mean, rank, median of rounds and paired differences."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from proxyfl.core.records import MEASURES
from proxyfl.results.paired import Difference, paired_difference

METRICS = ("mean-last", "last", "best")
RANKS = 2
"""How many of a group are marked: the best and the second best."""

K = TypeVar("K", bound=Hashable)


class Measured(Protocol):
    """One run in a cell, be it a directory or a row of an exported table."""

    @property
    def seed(self) -> int: ...

    @property
    def start_hash(self) -> str:
        """Of the weights it started from; empty where those are the seed's."""

    @property
    def dtype(self) -> str:
        """The precision it was computed in."""

    def value(self, metric: str) -> float:
        """The accuracy by one of :data:`METRICS`, or a measure beside it."""

    def rounds_to(self, target: float) -> int | None:
        """The first round that reaches an accuracy."""


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation; one value has none."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def text(self, factor: float = 100.0, places: int = 2) -> str:
        """In per cent, or times another factor."""
        mean = f"{factor * self.mean:.{places}f}"
        return mean if self.std is None else f"{mean} ± {factor * self.std:.{places}f}"


def median_rounds(cell: Sequence[Measured], target: float) -> float | None:
    """Rounds to an accuracy over seeds; None where not every seed gets there."""
    reached = [run.rounds_to(target) for run in cell]
    known = [rounds for rounds in reached if rounds is not None]
    return statistics.median(known) if known and len(known) == len(reached) else None


def difference(ours: Sequence[Measured], theirs: Sequence[Measured], metric: str) -> Difference | None:
    """Ours minus theirs over the seeds that both have. Only runs pair that started from the same weights and
    were computed in the same precision.
    """
    by_seed = [
        {(run.seed, run.start_hash, run.dtype): run.value(metric) for run in cell} for cell in (ours, theirs)
    ]
    found = paired_difference(*by_seed)
    return found and dataclasses.replace(found, less_is_better=less_is_better(metric))


def less_is_better(metric: str) -> bool:
    """Whether the best has the smallest value."""
    measure = MEASURES.get(metric.replace("-", "_"))
    return measure is not None and not measure.higher_is_better


def ranks(means: Mapping[K, float], metric: str = "") -> dict[K, int]:
    """1 and 2 for the best and second best of a group, as printed: equal numbers are equally good."""
    if len(means) < RANKS:
        return {}
    shown = {who: round(100 * mean, 2) for who, mean in means.items()}
    steps = sorted(set(shown.values()), reverse=not less_is_better(metric))[:RANKS]
    return {who: steps.index(value) + 1 for who, value in shown.items() if value in steps}


def share_of(best: float, share: float) -> float:
    """A target relative to the best accuracy, in whole per cent."""
    return round(100 * share * best) / 100


def span(counts: Iterable[int]) -> str:
    """``3``, or ``1 to 3`` where they differ."""
    known = {*counts}
    return "" if not known else f"{min(known)}" if len(known) == 1 else f"{min(known)} to {max(known)}"
