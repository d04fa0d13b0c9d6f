"""A comparison laid out: which rows and columns a table has and what stands in them, in no format yet.

Where one setting varies, methods are rows and its values columns; else every cell has a row of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from proxyfl.report.compare import METRICS, TARGET_SHARE, Cell, Comparison, Contender, Group
from proxyfl.report.keys import plain
from proxyfl.report.paired import LEVEL, Difference, warning
from proxyfl.report.tables import Spread, span

NONE, MINUS = "–", "−"
RANKS = 2
"""How many of a group are marked: the best and the second best."""


@dataclass(frozen=True)
class Question:
    """What a table is to tell: by which accuracy, rounds to which in a group, and differences from whom."""

    metric: str
    targets: Mapping[Group, float]
    baseline: Contender
    against: Contender | None = None

    @property
    def target(self) -> float | None:
        """That of all groups; None where they have different ones."""
        every = set(self.targets.values())
        return every.pop() if len(every) == 1 else None


def question(
    comparison: Comparison, metric: str = "mean-last", target: float | None = None, against: str = ""
) -> Question:
    """A question with its defaults filled in."""
    named = comparison.contender(against) if against else None
    targets = {
        group: comparison.default_target(group) if target is None else target for group in comparison.groups
    }
    return Question(metric, targets, named or comparison.baseline(targets), named)


@dataclass(frozen=True)
class Field:
    """What stands at one place. ``rank``: 1 the best of its group, 2 the second best, 0 no matter.
    ``tint`` is its colour in a terminal.
    """

    text: str
    rank: int = 0
    tint: str = ""


@dataclass(frozen=True)
class Column:
    """``follows``: it belongs to the column before it and is never parted from that."""

    heading: str
    left: bool = False
    follows: bool = False


@dataclass(frozen=True)
class Panel:
    """A table. The first ``keys`` columns say what a row is about; ``breaks`` are rows that begin a group."""

    name: str
    title: str
    columns: tuple[Column, ...]
    keys: int
    rows: tuple[tuple[Field, ...], ...]
    caption: tuple[str, ...]
    breaks: frozenset[int] = frozenset()


def panels(comparison: Comparison, asked: Question) -> list[Panel]:
    """Accuracy and rounds first; then differences from the method asked for, and the gain of the best."""
    grid = len(comparison.settings) == 1
    first = [_accuracy_grid, _rounds_grid] if grid else [_listing]
    made = [make(comparison, asked) for make in first]
    made += [_differences(comparison, asked, asked.against)] if asked.against else []
    made.append(_gains(comparison, asked))
    return [panel for panel in made if panel.rows]


def ranks(cells: Sequence[Cell], metric: str) -> dict[Contender, int]:
    """1 and 2 for the best and second best of a group, as printed: equal numbers are equally good."""
    if len(cells) < RANKS:
        return {}
    shown = {cell.contender: round(100 * cell.spread(metric).mean, 2) for cell in cells}
    steps = sorted(set(shown.values()), reverse=True)[:RANKS]
    return {who: steps.index(value) + 1 for who, value in shown.items() if value in steps}


def speed_up(comparison: Comparison, cell: Cell, asked: Question) -> float | None:
    """How many times fewer rounds to the target than the baseline of the same group needs."""
    base = comparison.cells.get((asked.baseline, cell.group))
    aim = asked.targets[cell.group]
    ours, theirs = cell.rounds_to(aim), base.rounds_to(aim) if base else None
    return theirs / ours if ours and theirs else None


def _accuracy_grid(comparison: Comparison, asked: Question) -> Panel:
    marks = {group: ranks(comparison.rivals(group), asked.metric) for group in comparison.groups}

    def show(cell: Cell) -> Field:
        return Field(cell.spread(asked.metric).percent(), marks[cell.group].get(cell.contender, 0))

    caption = [_accuracy_caption(comparison, _metric_in_words(comparison, asked.metric))]
    return _grid(
        comparison,
        "accuracy",
        "Test accuracy (%)",
        show,
        [*caption, *_remarks(comparison, best=asked.metric == "best")],
    )


def _rounds_grid(comparison: Comparison, asked: Question) -> Panel:
    def show(cell: Cell) -> Field:
        rounds, times = _rounds(cell, asked), speed_up(comparison, cell, asked)
        return Field(rounds if times is None else f"{rounds} ({_times(times)})")

    if asked.target is not None:
        title = f"Rounds to {_percent(asked.target)} accuracy (speed-up over {asked.baseline})"
        return _grid(comparison, "rounds", title, show, [_rounds_caption()])
    title = f"Rounds to {_percent(TARGET_SHARE)} of the best accuracy (speed-up over {asked.baseline})"
    panel = _grid(comparison, "rounds", title, show, [_rounds_caption()])
    aims = [f"to {_percent(asked.targets[group])}" for group in comparison.groups]
    heads = [Column(f"{head.heading}: {aim}") for head, aim in zip(panel.columns[1:], aims, strict=True)]
    return dataclasses.replace(panel, columns=(panel.columns[0], *heads))


def _grid(
    comparison: Comparison, name: str, title: str, show: Callable[[Cell], Field], caption: Iterable[str]
) -> Panel:
    rows = []
    for contender in comparison.contenders:
        found = (comparison.cells.get((contender, group)) for group in comparison.groups)
        rows.append((Field(str(contender)), *(show(cell) if cell else Field(NONE) for cell in found)))
    columns = [Column("method", left=True), *(Column(comparison.describe(g)) for g in comparison.groups)]
    return Panel(name, title, tuple(columns), 1, tuple(rows), tuple(caption))


def _listing(comparison: Comparison, asked: Question) -> Panel:
    """Every cell with all that is known of it, group by group."""
    metrics = sorted(METRICS, key=lambda metric: metric != asked.metric)
    headings = [_heading(comparison, metric) for metric in metrics]
    one = asked.target is not None
    aims = [f"rounds to {_percent(asked.target)}"] if asked.target is not None else ["target", "rounds to it"]
    columns = [*_key_columns(comparison), *map(Column, ("seeds", *headings, *aims, "speed-up"))]

    def show(cell: Cell) -> list[Field]:
        mates, times = comparison.rivals(cell.group), speed_up(comparison, cell, asked)
        accuracy = [
            Field(cell.spread(metric).percent(), ranks(mates, metric).get(cell.contender, 0))
            for metric in metrics
        ]
        aim = [] if one else [_percent(asked.targets[cell.group])]
        end = [*aim, _rounds(cell, asked), NONE if times is None else _times(times)]
        return [Field(str(len(cell.seeds))), *accuracy, *map(Field, end)]

    caption = [
        _accuracy_caption(comparison, ""),
        f"{_rounds_caption()} Speed-up over {asked.baseline}.",
        *([] if one else [f"Target: {_percent(TARGET_SHARE)} of the group's best mean of last rounds."]),
        *_remarks(comparison, best=True),
    ]
    listed = [comparison.in_group(group) for group in comparison.groups]
    return _list(comparison, "accuracy", "Test accuracy (%)", columns, listed, show, caption)


def _differences(comparison: Comparison, asked: Question, other: Contender) -> Panel:
    columns = [*_key_columns(comparison), *difference_columns("difference")]
    pairs: dict[tuple[Contender, Group], Difference | None] = {}
    listed: list[list[Cell]] = []
    for group in comparison.groups:
        base = comparison.cells.get((other, group))
        rivals = [cell for cell in comparison.in_group(group) if base and cell.contender != other]
        pairs |= {(cell.contender, group): cell.against(base, asked.metric) for cell in rivals if base}
        listed += [rivals] if rivals else []

    def show(cell: Cell) -> list[Field]:
        return difference_fields(pairs[cell.contender, cell.group])

    title = f"Difference from {other} (points)"
    caption = difference_caption(_metric_in_words(comparison, asked.metric), pairs.values())
    return _list(comparison, "differences", title, columns, listed, show, caption)


def _gains(comparison: Comparison, asked: Question) -> Panel:
    """The best of each group against the second best."""
    columns = [
        *(Column(comparison.names[key], left=True) for key in comparison.settings),
        Column("best", left=True), Column("second best", left=True), *difference_columns("gain"),
    ]  # fmt: skip
    rows: list[tuple[Field, ...]] = []
    found: list[Difference | None] = []
    for group in comparison.groups:
        gain = comparison.gain(group, asked.metric)
        if gain is not None:
            names = [*map(plain, group), str(gain.best), str(gain.second)]
            rows.append((*map(Field, names), *difference_fields(gain.paired)))
            found.append(gain.paired)
    caption = [
        "Gain: over the seeds that both have. Who is best was chosen on the same runs, so gains lean high.",
        *difference_caption(_metric_in_words(comparison, asked.metric), found),
    ]
    title = "Best against second best (points)"
    return Panel("gain", title, tuple(columns), len(comparison.settings) + 2, tuple(rows), tuple(caption))


def _list(
    comparison: Comparison,
    name: str,
    title: str,
    columns: Sequence[Column],
    listed: Iterable[Sequence[Cell]],
    show: Callable[[Cell], list[Field]],
    caption: Iterable[str],
) -> Panel:
    rows: list[tuple[Field, ...]] = []
    breaks = set()
    for cells in listed:
        breaks |= {len(rows)} if rows else set()
        for cell in cells:
            about = [str(cell.contender), *map(plain, cell.group)]
            rows.append((*map(Field, about), *show(cell)))
    keys = 1 + len(comparison.settings)
    return Panel(name, title, tuple(columns), keys, tuple(rows), tuple(caption), frozenset(breaks))


def _key_columns(comparison: Comparison) -> list[Column]:
    return [Column("method", left=True), *(Column(comparison.names[key]) for key in comparison.settings)]


def difference_columns(what: str, *, chance: bool = False) -> list[Column]:
    """The headings over :func:`difference_fields`."""
    return [
        Column(what),
        Column("bootstrap interval"),
        Column("pairs"),
        *([Column("p, corrected")] if chance else []),
        Column("verdict", left=True),
    ]


def difference_fields(found: Difference | None, *, chance: bool = False) -> list[Field]:
    """A difference in points with its interval, pairs and verdict, and if asked for how likely by chance."""
    if found is None:
        return [*map(Field, (NONE, NONE, "0", *([NONE] if chance else []), "no common seed"))]
    bounds = NONE
    if found.low is not None and found.high is not None:
        bounds = f"{_points(found.low)} to {_points(found.high)}"
    likely = [f"{found.chance:.3f}" if found.low is not None else NONE] if chance else []
    return [*map(Field, (_points(found.mean), bounds, str(found.pairs), *likely, found.verdict))]


def difference_caption(metric: str, found: Iterable[Difference | None]) -> list[str]:
    """How differences of an accuracy, called ``metric`` in words, were taken and what they are worth."""
    found = list(found)
    fewest = min((each.pairs for each in found if each and warning(each.pairs)), default=0)
    family = max((each.family for each in found if each), default=1)
    lines = [
        f"{metric.capitalize()}, paired by seed; interval: percentile bootstrap over seeds at "
        f"{100 * LEVEL:.0f} %, for each row by itself; noise: it contains 0, or signs turned at random give "
        f"as much in over {100 - 100 * LEVEL:.0f} % of cases."
    ]
    if family > 1:
        lines.append(
            f"p: exact sign-flip test, corrected by Holm's rule for {family} comparisons a data set."
        )
    return [*lines, f"{warning(fewest)}."] if fewest else lines


def _accuracy_caption(comparison: Comparison, metric: str) -> str:
    counts = {len(cell.seeds) for cell in comparison.cells.values()}
    spread = "one seed" if counts == {1} else f"mean ± standard deviation over {span(counts)} seeds"
    return f"{metric.capitalize()}; {spread}." if metric else f"{spread.capitalize()}."


def _remarks(comparison: Comparison, *, best: bool) -> list[str]:
    """What a reader has to know before believing the numbers."""
    lines = []
    if best:
        lines.append("Best round: chosen on the test data, so it is too high.")
    bounds = [str(each) for each in comparison.contenders if each.oracle]
    if 0 < len(bounds) < len(comparison.contenders):
        lines.append(f"Not ranked, because it knows more labels than a method may: {', '.join(bounds)}.")
    if comparison.follow:
        leading = " and ".join(comparison.names[key] for key in comparison.settings)
        lines.append(f"Settings that change along with {leading}: {', '.join(comparison.follow)}.")
    if len(comparison.seed_sets) > 1:
        lines.append("Not every cell has the same seeds: trust paired differences more than means.")
    if len(comparison.tails) > 1:
        low, *_, high = comparison.tails
        lines.append(f"The last rounds are {low} to {high}, as keep.last_rounds of each run says.")
    unfinished = sum(not outcome.finished for cell in comparison.cells.values() for outcome in cell.outcomes)
    if unfinished:
        lines.append(f"{unfinished} of the runs {'is' if unfinished == 1 else 'are'} not finished.")
    return lines


def _metric_in_words(comparison: Comparison, metric: str) -> str:
    if metric != "mean-last":
        return f"{metric} round"
    return f"mean of the {_tail(comparison)} rounds"


def _heading(comparison: Comparison, metric: str) -> str:
    return f"mean {_tail(comparison)}" if metric == "mean-last" else metric


def _tail(comparison: Comparison) -> str:
    return f"last {comparison.tails[0]}" if len(comparison.tails) == 1 else "last"


def _rounds_caption() -> str:
    return f"Rounds: median over seeds of the first round that gets there; {NONE}: not every seed does."


def _rounds(cell: Cell, asked: Question) -> str:
    rounds = cell.rounds_to(asked.targets[cell.group])
    return NONE if rounds is None else f"{rounds:g}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"


def _points(share: float) -> str:
    """A difference in percentage points, with its sign."""
    return f"{100 * share:+.2f}".replace("-", MINUS)


def _percent(share: float) -> str:
    return f"{Spread(share).percent().rstrip('0').rstrip('.')} %"
