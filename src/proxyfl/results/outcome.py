"""Runs, read for tables and frames: each once, those asked for, none that is there twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError, nearest
from proxyfl.core.records import MEASURES
from proxyfl.results.known import about
from proxyfl.results.settings import METHOD, Settings, distinguished_by, hashable, order, plain, settings_of
from proxyfl.runs.directory import measured
from proxyfl.runs.run import Run, Summary
from proxyfl.runs.short_names import COMMON

Where = Sequence[tuple[str, Any]]
"""Settings that runs must have. A key that is given several times may have any of the values."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Outcome:
    """One run, read: settings, accuracy by measured round (``curve``), over how many last ones it is averaged
    (``tail``); over the same rounds, ``measures`` beside it and the accuracy on ``validation`` images.
    """

    run: Run
    finished: bool
    settings: Settings
    tail: int
    curve: tuple[tuple[int, float], ...]
    summary: Summary
    measures: Mapping[str, float] = field(default_factory=dict)
    validation: float | None = None

    @property
    def name(self) -> str:
        return str(self.run.path)

    @property
    def method(self) -> str:
        return str(self.settings[METHOD])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def start_hash(self) -> str:
        return str(self.settings.get("model.weights_hash", ""))

    @property
    def dtype(self) -> str:
        return str(self.settings.get("compute.dtype", ""))

    @property
    def commit(self) -> str:
        """The program's when the run began."""
        return str(self.run.directory.hints().get("commit", ""))

    def value(self, metric: str) -> float:
        name = metric.replace("-", "_")
        if name not in MEASURES:
            return float(getattr(self.summary, name))
        if name not in self.measures:
            raise RunError(
                f"{self.name} has no {MEASURES[name].name} in its metrics; runs record it with "
                "--set keep.metrics=all, if the data allows it"
            )
        return self.measures[name]

    def rounds_to(self, target: float) -> int | None:
        return next((number for number, value in self.curve if value >= target), None)


def read(run: Run, *, finished: bool = True) -> Outcome:
    """A run with at least one measured round."""
    summary, scored = run.summary, measured(run.metrics)
    tail = min(run.config.keep.last_rounds, summary.measured)
    return Outcome(
        run=run,
        finished=finished,
        settings=settings_of(run.config),
        tail=tail,
        curve=tuple((line["round"], line["accuracy"]) for line in scored),
        summary=summary,
        measures=_means([line.get("measures", {}) for line in scored[-tail:]], MEASURES),
        validation=_means([line.get("validation", {}) for line in scored[-tail:]], ["accuracy"]).get(
            "accuracy"
        ),
    )


def _means(tables: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """The mean of each number that every one of the rounds has."""
    shared = [name for name in names if all(name in table for table in tables)]
    return {name: sum(table[name] for table in tables) / len(tables) for name in shared}


def read_all(
    runs: Iterable[Run], *, partial: bool = False, where: Where = ()
) -> tuple[list[Outcome], list[str]]:
    """Runs, each once, and notes on those that are left out: unreadable, damaged, there twice, and unless
    ``partial`` takes them in not finished.
    """
    known, unreadable = _readable(runs)
    outcomes: list[Outcome] = []
    notes: list[str] = []
    for run, settings in select(known, where):
        finished = run.finished
        try:
            if not finished:
                lines, total = run.metrics, settings["federation.rounds"]
                kept = "taken in" if partial and measured(lines) else "left out"
                notes.append(f"{kept}, not finished: {run.path}, {len(lines)} of {total} rounds")
            if finished or kept == "taken in":
                outcomes.append(read(run, finished=finished))
        except RunError as error:
            notes.append(f"left out, damaged: {run.path}: {error}")
    if not outcomes:
        why = "".join(f" ({note})" for note in [*notes, *unreadable][:1])
        raise RunError(f"there is no finished run to compare{why}; 'proxyfl ls' shows the progress of runs")
    outcomes, twice = _without_copies(outcomes)
    return outcomes, [*unreadable, *notes, *twice]


def _readable(runs: Iterable[Run]) -> tuple[list[tuple[Run, Settings]], list[str]]:
    """Each run once, with its settings; and notes on those that have none that can be read."""
    known: list[tuple[Run, Settings]] = []
    notes: list[str] = []
    for run in {run.path.resolve(): run for run in runs}.values():
        try:
            known.append((run, settings_of(run.config)))
        except ProxyFLError as error:
            notes.append(f"left out, cannot be read: {run.path}: {error}")
    return known, notes


def select(runs: Sequence[tuple[Run, Settings]], where: Where) -> Sequence[tuple[Run, Settings]]:
    """Those with the settings asked for."""
    wanted: dict[str, list[Any]] = defaultdict(list)
    for key, value in where:
        wanted[METHOD if key == "method" else COMMON.get(key, key)].append(hashable(value))
    known = {key for _, settings in runs for key in settings}
    for key, values in wanted.items():
        if known and key not in known:
            raise ConfigError(f"no run has a setting '{key}'; {nearest(key, known)}")
        there = {settings[key] for _, settings in runs if key in settings}
        fit = _all_names(values, there) if key == METHOD else values
        kept = [(run, settings) for run, settings in runs if settings.get(key) in fit]
        if runs and not kept:
            listed = ", ".join(map(plain, sorted(there, key=order))) or "not set"
            asked = " or ".join(map(plain, values))
            raise ConfigError(f"no run has {key} = {asked}; in these it is {listed}")
        runs = kept
    return runs


def _all_names(methods: Iterable[Any], there: Iterable[Any]) -> list[str]:
    """The names of methods and those that stand for them. Those that are there will be asked for next."""
    asked = [*map(str, methods)]
    known = about([*asked, *map(str, there)])
    return [name for method in asked for name in known[method].names]


def _without_copies(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[str]]:
    """Runs that were made twice count once, with a note."""
    copies = find_copies((at, each.name, each.settings, each.curve) for at, each in enumerate(outcomes))
    kept = [outcome for at, outcome in enumerate(outcomes) if at not in copies]
    if not copies:
        return kept, []
    one, *more = (f"{outcomes[first].name} and {outcomes[copy].name}" for copy, first in copies.items())
    what = f"{len(copies)} runs that are" if more else "a run that is"
    return kept, [f"counted once: {what} there twice: {one}{', …' if more else ''}"]


def find_copies(runs: Iterable[tuple[K, str, Settings, object]]) -> dict[K, K]:
    """Runs that are there twice: each copy with the one that counts, which comes first.

    ``runs`` are key, name, settings and curve. Two of different curves are refused, because nobody can tell
    which to believe; where one is not known (None) the two agree.
    """
    seen: dict[Hashable, tuple[K, str, object]] = {}
    copies: dict[K, K] = {}
    for key, name, settings, curve in runs:
        identity = (settings["seed"], *distinguished_by(settings))
        if identity not in seen:
            seen[identity] = (key, name, curve)
            continue
        first, its_name, its_curve = seen[identity]
        if curve is not None and its_curve is not None and curve != its_curve:
            raise RunError(
                f"{its_name} and {name} have the same settings and the same seed, but "
                "different accuracies; name the runs and leave out one of these two"
            )
        copies[key] = first
    return copies
