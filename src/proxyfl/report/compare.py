"""Many runs side by side: which settings differ, which runs are the seeds of one cell, how good each cell is.

A *contender* is a method, with those of its own parameters that vary among its runs. A *group* is one choice
of all other settings that vary. Within a group contenders meet on equal terms: there they are ranked, and
paired by seed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError, nearest
from proxyfl.methods import registry
from proxyfl.report import keys
from proxyfl.report.keys import BESIDE, Settings, hashable, leaves, order, plain, short_names, told_by
from proxyfl.report.paired import Difference, paired_difference
from proxyfl.report.tables import Spread
from proxyfl.runs.directory import measured
from proxyfl.runs.run import Run, Summary
from proxyfl.runs.settings import COMMON

METRICS = ("mean-last", "last", "best")
METHOD = "method.name"
BASELINES = ("fixmatch-lpl", "fedavg")
TARGET_SHARE = 0.9
"""Rounds are counted to this share of a group's best mean of last rounds, where no target is given."""

_FIRST = ("data.name", "labels.ratio", "partition.alpha", "fidelity")
"""Settings that name a group before others do."""

Group = tuple[Any, ...]


@dataclass(frozen=True)
class Outcome:
    """One run, read: settings, accuracy by measured round (``curve``), the program's ``commit``."""

    name: str
    finished: bool
    seed: int
    settings: Settings
    tail: int
    curve: tuple[tuple[int, float], ...]
    summary: Summary
    commit: str

    @property
    def method(self) -> str:
        return str(self.settings[METHOD])

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.seed, *told_by(self.settings))

    def value(self, metric: str) -> float:
        return float(getattr(self.summary, metric.replace("-", "_")))

    def rounds_to(self, target: float) -> int | None:
        """The first round that reaches an accuracy."""
        return next((number for number, value in self.curve if value >= target), None)


@dataclass(frozen=True)
class Contender:
    """A method, with those of its parameters that vary among its runs; ``label`` is both in words."""

    method: str
    own: tuple[tuple[str, Any], ...]
    label: str

    def __str__(self) -> str:
        return self.label

    @property
    def oracle(self) -> bool:
        """Whether it sees labels that a method may not: a bound, which is not ranked."""
        try:
            return registry.find(self.method).method.oracle
        except ProxyFLError:
            return False


@dataclass(frozen=True)
class Cell:
    """Runs that differ in nothing but the seed."""

    contender: Contender
    group: Group
    outcomes: tuple[Outcome, ...]

    @property
    def seeds(self) -> list[int]:
        return [outcome.seed for outcome in self.outcomes]

    def by_seed(self, metric: str) -> dict[int, float]:
        return {outcome.seed: outcome.value(metric) for outcome in self.outcomes}

    def spread(self, metric: str) -> Spread:
        return Spread.of([outcome.value(metric) for outcome in self.outcomes])

    def rounds_to(self, target: float) -> float | None:
        """The median over seeds; None where not all of them get there."""
        reached = [outcome.rounds_to(target) for outcome in self.outcomes]
        return None if None in reached else statistics.median(r for r in reached if r is not None)

    def against(self, other: Cell, metric: str) -> Difference | None:
        return paired_difference(self.by_seed(metric), other.by_seed(metric))


@dataclass(frozen=True)
class Gain:
    """By how much the best leads over the seeds that both have; nothing if they share none."""

    best: Contender
    second: Contender
    paired: Difference | None


@dataclass(frozen=True)
class Comparison:
    """Cells by contender and group.

    ``settings`` are the keys of a group's values; ``follow`` are settings that vary as well, but only
    together with those; ``names`` are short names for keys; ``notes`` tell of runs that are left out.
    """

    settings: tuple[str, ...]
    follow: tuple[str, ...]
    contenders: tuple[Contender, ...]
    groups: tuple[Group, ...]
    cells: Mapping[tuple[Contender, Group], Cell]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def in_group(self, group: Group) -> list[Cell]:
        found = (self.cells.get((contender, group)) for contender in self.contenders)
        return [cell for cell in found if cell is not None]

    def rivals(self, group: Group) -> list[Cell]:
        """A group's cells that are ranked: all but oracles, unless there is nothing else."""
        cells = self.in_group(group)
        return [cell for cell in cells if not cell.contender.oracle] or cells

    def ranked(self, group: Group, metric: str) -> list[Cell]:
        """The rivals of a group, the best first."""
        return sorted(self.rivals(group), key=lambda cell: cell.spread(metric).mean, reverse=True)

    def describe(self, group: Group) -> str:
        pairs = zip(self.settings, group, strict=True)
        return ", ".join(f"{self.names[key]} = {plain(value)}" for key, value in pairs)

    def gain(self, group: Group, metric: str) -> Gain | None:
        """The best of a group against the second best; None where there is no second."""
        first, second, *_ = [*self.ranked(group, metric), None, None]
        if first is None or second is None:
            return None
        return Gain(first.contender, second.contender, first.against(second, metric))

    def contender(self, name: str) -> Contender:
        """By what it is called in the table, or by its method's name or alias where that has one variant."""
        exact = [each for each in self.contenders if str(each) == name]
        alike = exact or [each for each in self.contenders if name in _called(each.method)]
        if len(alike) == 1:
            return alike[0]
        if alike:
            known = ", ".join(f"'{each}'" for each in alike)
            raise ConfigError(f"'{name}' stands for {len(alike)} rows of the table; name one of {known}")
        raise ConfigError(f"no run of '{name}' is among these; {nearest(name, map(str, self.contenders))}")

    def baseline(self, targets: Mapping[Group, float]) -> Contender:
        """What speed-ups are relative to where nothing is said: the first, from :data:`BASELINES` on, that
        gets to the target in every group, else in any.
        """
        ahead = [each for name in BASELINES for each in self.contenders if each.method == name]
        ordered = sorted(dict.fromkeys([*ahead, *self.contenders]), key=lambda each: each.oracle)
        got = {
            who: [(who, g) in self.cells and self.cells[who, g].rounds_to(to) for g, to in targets.items()]
            for who in ordered
        }
        everywhere = [who for who in ordered if all(got[who])]
        return [*everywhere, *(who for who in ordered if any(got[who])), *ordered][0]

    def default_target(self, group: Group) -> float:
        """A share of the mean of last rounds of the group's best, in whole per cent."""
        best = max(cell.spread("mean-last").mean for cell in self.rivals(group))
        return round(100 * TARGET_SHARE * best) / 100

    @property
    def seed_sets(self) -> set[frozenset[int]]:
        """Which seeds cells have; one set where all have the same."""
        return {frozenset(cell.seeds) for cell in self.cells.values()}

    @property
    def tails(self) -> list[int]:
        """Over how many last rounds means are taken; one number where all runs agree."""
        return sorted({outcome.tail for cell in self.cells.values() for outcome in cell.outcomes})


def compare(
    runs: Iterable[Run], *, partial: bool = False, where: Sequence[tuple[str, Any]] = ()
) -> Comparison:
    """Group runs into cells. ``where`` keeps those with a setting, see :func:`select`.

    Unfinished runs are left out with a note; with ``partial`` they are taken in.
    """
    known, unreadable = _readable(runs)
    outcomes, unfinished = _read_all(select(known, where), partial=partial)
    if not outcomes:
        why = "".join(f" ({note})" for note in [*unfinished, *unreadable][:1])
        raise RunError(f"there is no finished run to compare{why}; 'proxyfl ls' shows how far runs are")
    outcomes, twins = _without_twins(outcomes)
    settings, follow, own = _varying(outcomes)
    names = short_names(dict.fromkeys([*settings, *(key for keys in own.values() for key in keys)]))
    cells: dict[tuple[Contender, Group], list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda each: each.seed):
        group = tuple(outcome.settings.get(key, "–") for key in settings)
        cells[_contender(outcome, own[outcome.method], names), group].append(outcome)
    return Comparison(
        settings=settings,
        follow=follow,
        contenders=tuple(sorted({contender for contender, _ in cells}, key=_place)),
        groups=tuple(sorted({group for _, group in cells}, key=lambda group: [*map(order, group)])),
        cells={(who, group): Cell(who, group, tuple(each)) for (who, group), each in cells.items()},
        names=names,
        notes=(*unreadable, *unfinished, *twins),
    )


def _contender(outcome: Outcome, keys: Iterable[str], names: Mapping[str, str]) -> Contender:
    own = tuple((key, outcome.settings[key]) for key in keys)
    label = " ".join([outcome.method, *(f"{names[key]}={plain(value)}" for key, value in own)])
    return Contender(outcome.method, own, label)


def _readable(runs: Iterable[Run]) -> tuple[list[tuple[Run, Settings]], list[str]]:
    """Each run once, with its settings; and notes on those that have none that can be read."""
    known: list[tuple[Run, Settings]] = []
    notes: list[str] = []
    for run in {run.path.resolve(): run for run in runs}.values():
        try:
            known.append((run, leaves(run.config.to_tree())))
        except ProxyFLError as error:
            notes.append(f"left out, cannot be read: {run.path}: {error}")
    return known, notes


def _read_all(runs: Iterable[tuple[Run, Settings]], *, partial: bool) -> tuple[list[Outcome], list[str]]:
    outcomes: list[Outcome] = []
    notes: list[str] = []
    for run, settings in runs:
        finished = run.finished
        try:
            if not finished:
                lines, total = run.metrics, settings["federation.rounds"]
                kept = "taken in" if partial and measured(lines) else "left out"
                notes.append(f"{kept}, not finished: {run.path}, {len(lines)} of {total} rounds")
            if finished or kept == "taken in":
                outcomes.append(_read(run, settings, finished=finished))
        except RunError as error:
            notes.append(f"left out, damaged: {run.path}: {error}")
    return outcomes, notes


def _read(run: Run, settings: Settings, *, finished: bool) -> Outcome:
    """A run with at least one finished round."""
    summary = run.summary
    return Outcome(
        name=str(run.path),
        finished=finished,
        seed=settings["seed"],
        settings=settings,
        tail=min(settings["keep.last_rounds"], summary.measured),
        curve=tuple((line["round"], line["accuracy"]) for line in measured(run.metrics)),
        summary=summary,
        commit=str(run.directory.hints().get("commit", "")),
    )


def select(
    runs: Sequence[tuple[Run, Settings]], where: Sequence[tuple[str, Any]]
) -> Sequence[tuple[Run, Settings]]:
    """Those with the settings asked for. A key that is given several times may have any of the values."""
    wanted: dict[str, list[Any]] = defaultdict(list)
    for key, value in where:
        wanted[METHOD if key == "method" else COMMON.get(key, key)].append(hashable(value))
    known = {key for _, settings in runs for key in settings}
    for key, values in wanted.items():
        if known and key not in known:
            raise ConfigError(f"no run has a setting '{key}'; {nearest(key, known)}")
        there = {settings[key] for _, settings in runs if key in settings}
        fit = [name for value in values for name in _called(str(value))] if key == METHOD else values
        kept = [(run, settings) for run, settings in runs if settings.get(key) in fit]
        if runs and not kept:
            listed = ", ".join(map(plain, sorted(there, key=order))) or "not set"
            asked = " or ".join(map(plain, values))
            raise ConfigError(f"no run has {key} = {asked}; in these it is {listed}")
        runs = kept
    return runs


def _without_twins(outcomes: Iterable[Outcome]) -> tuple[list[Outcome], list[str]]:
    """Runs that were made twice count once, with a note. Where the two came out otherwise nobody can tell
    which to believe.
    """
    seen: dict[tuple[Any, ...], Outcome] = {}
    again: list[str] = []
    for outcome in outcomes:
        first = seen.setdefault(outcome.identity, outcome)
        if first is outcome:
            continue
        if first.curve != outcome.curve:
            raise RunError(
                f"{first.name} and {outcome.name} have the same settings and the same seed, but not the same "
                "accuracies; name the runs to compare, only one of these two among them"
            )
        again.append(f"{first.name} and {outcome.name}")
    if not again:
        return [*seen.values()], []
    what = "a run that is" if len(again) == 1 else f"{len(again)} runs that are"
    return [*seen.values()], [f"counted once: {what} there twice: {again[0]}{', …' if again[1:] else ''}"]


def _varying(
    outcomes: Sequence[Outcome],
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, list[str]]]:
    """Keys that name a group, keys that only follow those, and per method its own keys that vary.

    A method's parameter names a group only where all methods went through the same values of it.
    """
    values: dict[str, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    methods = {outcome.method for outcome in outcomes}
    for outcome in outcomes:
        for key, value in outcome.settings.items():
            values[key][outcome.method].add(value)
    shared: list[str] = []
    own: dict[str, list[str]] = {method: [] for method in methods}
    for key, by_method in values.items():
        if key == METHOD or BESIDE.fullmatch(key):
            continue
        if not key.startswith("method."):
            shared += [key] if len(set().union(*by_method.values())) > 1 else []
        elif any(len(each) > 1 for each in by_method.values()):
            crossed = len({frozenset(by_method.get(method, ())) for method in methods}) == 1
            if crossed and len(methods) > 1:
                shared.append(key)
            else:
                for method in by_method:
                    own[method] += [key] if len(by_method[method]) > 1 else []
    shared.sort(key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    needed, settled = keys.telling(shared, [outcome.settings for outcome in outcomes])
    following = _following(own, needed, outcomes)
    own = {method: [key for key in keys if key not in following[method]] for method, keys in own.items()}
    more = dict.fromkeys(key for keys in following.values() for key in keys)
    return tuple(needed), (*settled, *more), own


def _following(
    own: Mapping[str, Sequence[str]], needed: Sequence[str], outcomes: Iterable[Outcome]
) -> dict[str, list[str]]:
    """Keys of each method's own that its group settles, as presets set some by the data set."""
    values: dict[tuple[str, str], dict[Group, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for outcome in outcomes:
        group = tuple(outcome.settings.get(key) for key in needed)
        for key in own[outcome.method]:
            values[outcome.method, key][group].add(outcome.settings.get(key))
    return {
        method: [key for key in keys if all(len(each) == 1 for each in values[method, key].values())]
        for method, keys in own.items()
    }


def _called(method: str) -> list[str]:
    """A method's names: its own, and those that stand for it."""
    try:
        name = registry.find(method).name
    except ProxyFLError:
        return [method]
    return list(dict.fromkeys([method, name, *registry.aliases_of(name)]))


def _place(contender: Contender) -> tuple[Any, ...]:
    """By rank, from the plain methods on; ``parent+addon`` after its parent."""
    name, parent = contender.method, contender.method.partition("+")[0]
    if registry.shown(name).rank < registry.LAST:
        parent = name
    return (
        registry.shown(parent).rank,
        name != parent,
        name,
        [(key, order(value)) for key, value in contender.own],
    )
