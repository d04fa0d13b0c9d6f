"""Many runs side by side: which settings differ, which runs are the seeds of one cell, how good each cell is.

A *contender* is a method, with those of its own parameters that vary among its runs. A *group* is one choice
of all other settings that vary. Within a group contenders meet on equal terms: there they are ranked, and
paired by seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.results.cells import Spread, difference, less_is_better, median_rounds, ranks, share_of
from proxyfl.results.choice import choose
from proxyfl.results.known import Known, about
from proxyfl.results.outcome import Outcome, Where, read_all
from proxyfl.results.paired import Difference
from proxyfl.results.settings import BESIDE, FIRST, METHOD, order, plain, short_names, telling
from proxyfl.runs.run import Run

BASELINES = ("fixmatch-lpl", "fedavg")
TARGET_SHARE = 0.9
"""Rounds are counted to this share of a group's best mean of last rounds, where no target is given."""

Group = tuple[Any, ...]


@dataclass(frozen=True)
class Contender:
    """A method, with those of its parameters that vary among its runs; ``label`` is both in words, and
    ``known`` what else tables need of the method.
    """

    method: str
    own: tuple[tuple[str, Any], ...]
    label: str
    known: Known = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.label

    @property
    def oracle(self) -> bool:
        """Whether it sees labels that a method may not: a bound, which is not ranked."""
        return self.known.oracle


@dataclass(frozen=True)
class Cell:
    """Runs that differ in nothing but the seed."""

    contender: Contender
    group: Group
    outcomes: tuple[Outcome, ...]

    @property
    def seeds(self) -> list[int]:
        return [outcome.seed for outcome in self.outcomes]

    def spread(self, metric: str) -> Spread:
        return Spread.of([outcome.value(metric) for outcome in self.outcomes])

    def rounds_to(self, target: float) -> float | None:
        return median_rounds(self.outcomes, target)

    def against(self, other: Cell, metric: str) -> Difference | None:
        return difference(self.outcomes, other.outcomes, metric)


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
        upside_down = not less_is_better(metric)
        return sorted(self.rivals(group), key=lambda cell: cell.spread(metric).mean, reverse=upside_down)

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
        alike = exact or [each for each in self.contenders if name in each.known.names]
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
        return share_of(max(cell.spread("mean-last").mean for cell in self.rivals(group)), TARGET_SHARE)

    def ranks(self, group: Group, metric: str) -> dict[Contender, int]:
        return ranks({cell.contender: cell.spread(metric).mean for cell in self.rivals(group)}, metric)

    @property
    def seed_sets(self) -> set[frozenset[int]]:
        """Which seeds cells have; one set where all have the same."""
        return {frozenset(cell.seeds) for cell in self.cells.values()}

    @property
    def tails(self) -> list[int]:
        """Over how many last rounds means are taken; one number where all runs agree."""
        return sorted({outcome.tail for cell in self.cells.values() for outcome in cell.outcomes})


def compare(
    runs: Iterable[Run],
    *,
    partial: bool = False,
    where: Where = (),
    select: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> Comparison:
    """Group runs into cells. ``where`` keeps those with some settings; of the settings in ``select`` each
    method has its best values; ``names`` are what methods and settings are called in the table.

    Unfinished runs are left out with a note; with ``partial`` they are taken in.
    """
    outcomes, notes = read_all(runs, partial=partial, where=where)
    if select:
        outcomes, chosen = choose(outcomes, select)
        notes = [*notes, *chosen]
    settings, follow, own = _varying(outcomes)
    short = short_names(dict.fromkeys([*settings, *(key for keys in own.values() for key in keys)]))
    methods = about(own)
    called = _called(names or {}, short, methods)
    cells: dict[tuple[Contender, Group], list[Outcome]] = defaultdict(list)
    for outcome in sorted(outcomes, key=lambda each: each.seed):
        group = tuple(outcome.settings.get(key, "–") for key in settings)
        who = _contender(outcome, own[outcome.method], called, methods[outcome.method])
        cells[who, group].append(outcome)
    return Comparison(
        settings=settings,
        follow=follow,
        contenders=tuple(sorted({contender for contender, _ in cells}, key=_place)),
        groups=tuple(sorted({group for _, group in cells}, key=lambda group: [*map(order, group)])),
        cells={(who, group): Cell(who, group, tuple(each)) for (who, group), each in cells.items()},
        names=called,
        notes=tuple(notes),
    )


def _called(
    given: Mapping[str, str], short: Mapping[str, str], methods: Mapping[str, Known]
) -> dict[str, str]:
    """Names of settings by their keys and of methods by theirs, the given ones first."""
    keys = {word: key for key, word in short.items()}
    aliases = {alias: method for method, known in methods.items() for alias in known.names}
    called = dict(short)
    for name, new in given.items():
        key = name if name in short else keys.get(name) or aliases.get(name)
        if key is None:
            near = nearest(name, [*methods, *keys])
            raise ConfigError(f"nothing in the table is called '{name}', so it cannot be renamed; {near}")
        called[key] = new
    return called


def _contender(outcome: Outcome, keys: Iterable[str], names: Mapping[str, str], known: Known) -> Contender:
    own = tuple((key, outcome.settings[key]) for key in keys)
    label = " ".join(
        [names.get(outcome.method, outcome.method), *(f"{names[key]}={plain(value)}" for key, value in own)]
    )
    return Contender(outcome.method, own, label, known)


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
    shared.sort(key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    needed, settled = telling(shared, [outcome.settings for outcome in outcomes])
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


def _place(contender: Contender) -> tuple[Any, ...]:
    """By rank, from the plain methods on; ``parent+addon`` after its parent."""
    return (
        contender.known.rank,
        contender.known.after,
        contender.method,
        [(key, order(value)) for key, value in contender.own],
    )
