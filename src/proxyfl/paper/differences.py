"""What of a table is more than noise: its rows against reference rows and its gains, paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxyfl.paper.captions import name_of, place_of, rounds_of
from proxyfl.paper.catalogue import Column, Item
from proxyfl.paper.results import Result, Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report import panels
from proxyfl.report.paired import FEWEST, Difference, paired_difference
from proxyfl.report.panels import Field, Panel, difference_caption, difference_columns, difference_fields

Pair = tuple[str, str, str]
"""What a difference is called, of which row it is and from which."""

WORDS: dict[str, Callable[[Column], str]] = {
    "data": lambda column: TITLES[column.data],
    "α": lambda column: f"{column.alpha:g}",
}
"""A column in words, of which those are said that vary."""


def differences(
    item: Item, size: Scale, results: Results, columns: Sequence[Column], metric: str = "mean-last"
) -> list[Panel]:
    """A table for each reference row, and one for the gains over a single row."""
    rows = [row.label for row in item.rows]
    asked: dict[str, list[Pair]] = {
        f"difference from {reference}": [(row, row, reference) for row in rows if row != reference]
        for reference in item.references
    }
    asked["gains"] = [(gain.label, gain.row, *gain.over) for gain in item.gains if len(gain.over) == 1]
    made = (_panel(item, size, results, columns, metric, *block) for block in asked.items())
    found = [panel for panel in made if panel is not None]
    return [replace(panel, name=f"{panel.name}-{number}") for number, panel in enumerate(found, 1)]


def _panel(
    item: Item,
    size: Scale,
    results: Results,
    columns: Sequence[Column],
    metric: str,
    about: str,
    pairs: Sequence[Pair],
) -> Panel | None:
    """None where no pair of rows shares enough seeds for an interval."""
    found = {
        (label, column): difference
        for column in columns
        for label, row, other in pairs
        if (difference := _between(results, row, other, column, metric))
    }
    if not any(difference.pairs >= FEWEST for difference in found.values()):
        return None
    varying = {name: word for name, word in WORDS.items() if len({word(column) for column in columns}) > 1}
    rows = [
        (Field(label), *(Field(word(column)) for word in varying.values()), *difference_fields(difference))
        for (label, column), difference in found.items()
    ]
    heads = [panels.Column(name, left=True) for name in ("method", *varying)]
    order = [column for _, column in found]
    return Panel(
        name=f"{item.name}-differences",
        title=", ".join([f"{name_of(item)}: {about} (points)", *place_of(size, columns)]),
        columns=(*heads, *difference_columns("difference")),
        keys=len(heads),
        rows=tuple(rows),
        caption=tuple(difference_caption(rounds_of(results, columns, metric), found.values())),
        breaks=frozenset(place for place in range(1, len(order)) if order[place] != order[place - 1]),
    )


def _between(results: Results, row: str, other: str, column: Column, metric: str) -> Difference | None:
    ours, theirs = (results.get((name, column.key), ()) for name in (row, other))
    return paired_difference(_by_seed(ours, metric), _by_seed(theirs, metric))


def _by_seed(cell: Sequence[Result], metric: str) -> dict[tuple[int, str], float]:
    """Only runs that started from the same weights are paired."""
    return {(result.seed, result.start_hash): result.accuracy(metric) for result in cell}
