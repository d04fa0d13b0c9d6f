"""An item as tables: ours beside the published numbers, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxyfl.paper.captions import bounds, counted, name_of, place_of, remarks, rounds_of
from proxyfl.paper.items import Column, Gain, Item
from proxyfl.paper.published import Published, published
from proxyfl.paper.results import Result, Results
from proxyfl.paper.rounds import NEUTRAL, cost_panel, rounds_panel
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report.communication import PAPER, measure, method_rows
from proxyfl.results import cells, layout
from proxyfl.results.cells import Spread
from proxyfl.results.layout import MINUS, NONE, Field, Panel, signed

ABOVE, BELOW = "green", "red"
TRAFFIC = {"FedMatch": "FedMatch + helpers", "Prototypes": "prototypes"}
"""Rows of table 7 that the count calls otherwise."""


Pair = Callable[[str, Column, str], tuple[float | None, float | None]]
"""Our mean of a row, on the seeds that another row has, too, and the paper's number."""


@dataclass(frozen=True)
class Measure:
    """What a number tells. ``suffix`` marks its columns in the file of published numbers."""

    title: str
    of: Callable[[Result, str], float | None]
    suffix: str = ""
    factor: float = 100.0
    places: int = 2
    more_is_better: bool = True

    def text(self, spread: Spread) -> str:
        return spread.text(self.factor, self.places)

    def spread(self, results: Sequence[Result], metric: str) -> Spread | None:
        values = [value for value in (self.of(each, metric) for each in results) if value is not None]
        return Spread.of(values) if values else None


def _pseudo(result: Result, metric: str) -> float | None:
    return result.pseudo_accuracy


def _excluded(result: Result, metric: str) -> float | None:
    return result.excluded_visits


MEASURES = {
    "accuracy": Measure("Test accuracy (%)", Result.value),
    "test": Measure("Test accuracy (%)", Result.value, ":test"),
    "pseudo": Measure("Accuracy of pseudo-labels (%)", _pseudo, ":pseudo"),
    "excluded": Measure(
        "Excluded unlabelled images, visits per round", _excluded, factor=1.0, places=0, more_is_better=False
    ),
}
SENT = Measure("Millions of numbers", Result.value, factor=1.0, more_is_better=False)
"""How traffic is written."""


def tables(
    item: Item, size: Scale, results: Results, columns: Sequence[Column], metric: str = "mean-last"
) -> list[Panel]:
    """The item's tables for some of its columns."""
    if item.kind == "traffic":
        return [_traffic(item)]
    if item.kind == "rounds":
        return [rounds_panel(item, size, results, column) for column in columns]
    if item.kind == "cost":
        return [cost_panel(item, size, results, column) for column in columns]
    found = [
        _accuracies(item, size, results, part, MEASURES[name], metric)
        for name in item.measures
        for part in _parts(columns)
    ]
    return [panel for panel in found if panel.rows]


def _parts(columns: Sequence[Column]) -> list[list[Column]]:
    """The columns of each table: where alpha varies every data set has one of its own."""
    names = dict.fromkeys(column.data for column in columns)
    if len({column.alpha for column in columns}) == 1:
        return [list(columns)]
    return [[column for column in columns if column.data == name] for name in names]


def _accuracies(
    item: Item, size: Scale, results: Results, columns: Sequence[Column], what: Measure, metric: str
) -> Panel:
    printed = published(item.name)
    one_set = len({column.data for column in columns}) == 1
    heads = [layout.Column("method", left=True)]
    for column in columns:
        name = f"α={column.alpha:g}" if one_set else TITLES[column.data]
        heads.append(layout.Column(f"{name}: ours"))
        heads += [layout.Column(each, follows=True) for each in _beside(item, size, printed)]
    ranks = [_ranks(item, results, column, what, metric) for column in columns]
    rows: list[tuple[Field, ...]] = []
    base = None if _absolute(item, size) or not printed.values else reference(item, printed, columns)

    def pair(label: str, column: Column, beside: str = "") -> tuple[float | None, float | None]:
        """Our mean, on seeds that the row beside it has, too, and the paper's number."""
        seeds = {result.seed for result in results.get((beside or label, column.key), ())}
        cell = [result for result in results.get((label, column.key), ()) if result.seed in seeds]
        ours = what.spread(cell, metric)
        return ours.mean * what.factor if ours else None, printed.get(label, column.key + what.suffix)

    for row in item.rows:
        fields: list[Field] = [Field(row.label)]
        for column, rank in zip(columns, ranks, strict=True):
            spread = what.spread(results.get((row.label, column.key), ()), metric)
            fields.append(Field(what.text(spread) if spread else NONE, rank.get(row.label, 0)))
            if printed.values and base is None:
                fields += _compared(*pair(row.label, column), what)
            elif base is not None:
                fields += _gaps(
                    row.label, base, pair(row.label, column, base), pair(base, column, row.label), what
                )
        rows.append(tuple(fields))
    labels = {row.label for row in item.rows}
    gains = [
        _gain_row(gain, columns, pair, what, compared=size.comparable)
        for gain in item.gains
        if labels.issuperset([gain.row, *gain.over])
    ]
    breaks = frozenset({len(rows)}) if gains else frozenset[int]()
    said = [*_spread_caption(item, results, columns, metric), *bounds(item)]
    if gains:
        said.append(
            "Below the rows: differences of means on the seeds that both rows have; the paired differences "
            "show which of them are noise."
        )
    if base is not None:
        said.append(
            f"Gap: difference from {base} in points, on the seeds that both have; beside it, the same gap "
            "between the published numbers."
        )
    caption = [*said, *remarks(item, size, columns)]
    name = (f"{item.name}-{columns[0].data}" if one_set else item.name) + what.suffix.replace(":", "-")
    title = _title(item, size, columns, what)
    return Panel(name, title, tuple(heads), 1, (*rows, *gains), tuple(caption), breaks)


def _absolute(item: Item, size: Scale) -> bool:
    """Whether published numbers stand beside ours as they are; elsewhere their gaps do."""
    return size.comparable or item.picture


def _beside(item: Item, size: Scale, printed: Published) -> tuple[str, ...]:
    """The headings that follow ours."""
    if not printed.values:
        return ()
    return ("paper", "diff.") if _absolute(item, size) else ("gap", "paper's gap")


def reference(item: Item, printed: Published, columns: Sequence[Column]) -> str:
    """The row from which gaps are taken: the first one of weight that the paper has numbers of."""
    names = [*item.references, *(row.label for row in item.rows)]
    known = [name for name in names if any(printed.get(name, each.key) is not None for each in columns)]
    return [*known, *names][0]


def _gaps(
    label: str,
    base: str,
    row: tuple[float | None, float | None],
    other: tuple[float | None, float | None],
    what: Measure,
) -> list[Field]:
    """How far a row is from the reference, ours and the paper's."""
    if label == base:
        return [Field(NONE), Field(NONE)]
    pairs = zip(row, other, strict=True)
    return [Field(NONE) if a is None or b is None else _signed(a - b, what) for a, b in pairs]


def _title(item: Item, size: Scale, columns: Sequence[Column], what: Measure) -> str:
    head = f"{name_of(item)}: {what.title if item.picture else f'{item.title} (%)'}"
    return ", ".join([head, *place_of(size, columns)])


def _compared(ours: float | None, theirs: float | None, what: Measure) -> list[Field]:
    """What the paper has, and how much more or less ours is."""
    if theirs is None:
        return [Field(NONE), Field(NONE)]
    there = Field(f"{theirs:.{what.places}f}")
    return [there, Field(NONE) if ours is None else _signed(ours - theirs, what)]


def _signed(value: float, what: Measure) -> Field:
    shown = signed(value, f"+.{what.places}f")
    tint = BELOW if shown.startswith(MINUS) else ABOVE
    return Field(shown, tint=tint if what.more_is_better else NEUTRAL)


def _gain_row(
    gain: Gain, columns: Sequence[Column], pair: Pair, what: Measure, *, compared: bool
) -> tuple[Field, ...]:
    """By how much a row leads the best of others, ours and the paper's, and where scales allow it how far
    those are apart.
    """
    fields: list[Field] = [Field(gain.label)]
    for column in columns:
        pairs = [(pair(gain.row, column, name), pair(name, column, gain.row)) for name in gain.over]
        mine, paper = (_least([(row[k], other[k]) for row, other in pairs]) for k in (0, 1))
        leads = [Field(NONE if value is None else _signed(value, what).text) for value in (mine, paper)]
        if not compared:
            fields += [Field(NONE), *leads]
        elif mine is not None and paper is not None:
            fields += [*leads, _signed(mine - paper, what)]
        else:
            fields += [*leads, Field(NONE)]
    return tuple(fields)


def _least(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """The smallest of the leads; None while a number is missing."""
    leads = [row - other for row, other in pairs if row is not None and other is not None]
    return min(leads) if len(leads) == len(pairs) else None


def _ranks(item: Item, results: Results, column: Column, what: Measure, metric: str) -> dict[str, int]:
    """1 and 2 for the best and second best of a column; bounds are not ranked."""
    if item.picture:
        return {}
    rivals = [row.label for row in item.rows if not row.bound]
    found = {label: what.spread(results.get((label, column.key), ()), metric) for label in rivals}
    return cells.ranks({label: spread.mean for label, spread in found.items() if spread is not None})


def _traffic(item: Item) -> Panel:
    printed = published(item.name)
    counted = {row.method: row for row in method_rows(measure(PAPER))}
    rows: list[tuple[Field, ...]] = []
    for label, column in printed.values:
        row = counted[TRAFFIC.get(label, label)]
        ours = row.count(PAPER.per_round).per_client_download / 1e6
        compared = _compared(ours, printed.get(label, column), SENT)
        rows.append((Field(label), Field(row.formula), Field(f"{ours:.2f}"), *compared))
    heads = [layout.Column("method", left=True), layout.Column("ours: formula", left=True)]
    heads += [
        layout.Column("ours"),
        layout.Column("paper", follows=True),
        layout.Column("diff.", follows=True),
    ]
    title = f"{name_of(item)}: {item.title}, millions of numbers"
    return Panel(item.name, title, tuple(heads), 1, tuple(rows), item.notes)


def _spread_caption(item: Item, results: Results, columns: Sequence[Column], metric: str) -> list[str]:
    """Which accuracy the numbers are, and over how many seeds."""
    words = rounds_of(results, columns, metric)
    theirs = "The paper does not say which rounds its numbers come from."
    if item.picture:
        theirs = "The paper's numbers are read off its figure." if published(item.name).values else ""
    return [" ".join(filter(None, [f"Ours: {words}.", theirs])), *counted(item, results, columns)]
