"""Runs that differ in their seeds as one bar or point: a value of each, their mean and spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.results.cells import Spread, span
from proxyfl.runs.run import Run

COLUMNS = ("seed", "value", "mean", "std", "run")
"""What :meth:`Group.rows` has behind the caller's own columns."""

Value = Callable[[Run], float]


@dataclass(frozen=True)
class Group:
    """The values of some runs."""

    runs: Sequence[Run]
    values: Sequence[float]

    @classmethod
    def of(cls, name: str, runs: Sequence[Run], value: Value) -> Group:
        if not runs:
            raise RunError(f"there is no run of {name} to draw")
        for run in runs:
            if not run.finished:
                raise RunError(f"{run.path} has not finished; continue with 'proxyfl resume {run.path}'")
        return cls(runs, [value(run) for run in runs])

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)

    @property
    def error(self) -> float:
        """The sample standard deviation; 0 for a single run, which draws no line."""
        return self.spread.std or 0.0

    def rows(self, *keys: Any) -> list[tuple[Any, ...]]:
        """One row for each run: the caller's keys, then ``COLUMNS``."""
        spread, std = self.spread, "" if self.spread.std is None else self.spread.std
        return [
            (*keys, run.config.seed, value, spread.mean, std, run.path.name)
            for run, value in zip(self.runs, self.values, strict=True)
        ]


def accuracy(run: Run) -> float:
    """Test accuracy in per cent, the mean of the last rounds."""
    return 100 * run.summary.mean_last


def pseudo_accuracy(run: Run) -> float:
    """Share of right pseudo-labels over all visits in per cent, the mean of the last rounds."""
    return 100 * statistics.fmean(pseudo_values(run, "accuracy")[-run.config.keep.last_rounds :])


def pseudo_values(run: Run, name: str) -> list[float]:
    """What the rounds recorded about pseudo-labels under a name; rounds without any are left out."""
    found = [line["pseudo"][name] for line in run.metrics if name in line["pseudo"]]
    if not found:
        method = run.config.method.name
        raise RunError(
            f"{run.path} recorded no '{name}' of pseudo-labels: {method} has none, or no unlabelled images"
        )
    return found


def tail(groups: Iterable[Group]) -> str:
    """Over which rounds accuracies are averaged, in words."""
    runs = [run for group in groups for run in group.runs]
    counts = {min(run.config.keep.last_rounds, run.summary.measured) for run in runs}
    if counts == {1}:
        return "the last round"
    return f"the last {counts.pop()} rounds" if len(counts) == 1 else "the last rounds"


def seeds(groups: Iterable[Group], mark: str) -> str:
    """How many runs there are for a value, and what ``mark`` shows of them; empty where there is one each."""
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return ""
    return f"Mean of {span(counts)} seeds; {mark}: ± one standard deviation."
