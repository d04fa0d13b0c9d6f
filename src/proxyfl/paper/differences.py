"""What of a table is more than noise: its rows against reference rows and its gains, paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from proxyfl.paper.captions import name_of, place_of, rounds_of
from proxyfl.paper.items import Column, Item
from proxyfl.paper.results import Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.results import layout
from proxyfl.results.cells import difference
from proxyfl.results.layout import Panel, difference_panel
from proxyfl.results.paired import FEWEST, holm

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
    blocks = {
        column: {
            label: found
            for label, *rows in pairs
            for ours, theirs in [[results.get((row, column.key), ()) for row in rows]]
            if (found := difference(ours, theirs, metric))
        }
        for column in columns
    }
    if not any(found.pairs >= FEWEST for block in blocks.values() for found in block.values()):
        return None
    if item.corrected:
        blocks = {
            column: dict(zip(block, holm([*block.values()]), strict=True)) for column, block in blocks.items()
        }
    varying = {name: word for name, word in WORDS.items() if len({word(column) for column in columns}) > 1}
    return difference_panel(
        name=f"{item.name}-differences",
        title=", ".join([f"{name_of(item)}: {about} (points)", *place_of(size, columns)]),
        keys=[layout.Column(name, left=True) for name in ("method", *varying)],
        blocks=[
            [([label, *(word(column) for word in varying.values())], found) for label, found in block.items()]
            for column, block in blocks.items()
        ],
        metric=rounds_of(results, columns, metric),
        chance=item.corrected,
    )
