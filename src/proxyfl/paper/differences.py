"""What of a table is more than noise: each row against the item's reference row, paired by seed."""

from __future__ import annotations

from collections.abc import Sequence

from proxyfl.paper.captions import name_of, place_of, rounds_of
from proxyfl.paper.catalogue import Column, Item
from proxyfl.paper.results import Result, Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report import panels
from proxyfl.report.paired import FEWEST, Difference, paired_difference
from proxyfl.report.panels import Field, Panel, difference_caption, difference_columns, difference_fields


def differences(
    item: Item, size: Scale, results: Results, columns: Sequence[Column], metric: str = "mean-last"
) -> list[Panel]:
    """One table, or none where no row shares enough seeds with the reference for an interval."""
    found = {
        (row.label, column): difference
        for column in columns
        for row in item.rows
        if row.label != item.reference and (difference := _between(item, results, row.label, column, metric))
    }
    if not any(difference.pairs >= FEWEST for difference in found.values()):
        return []
    keys = {
        "data": [TITLES[column.data] for column in columns],
        "α": [f"{column.alpha:g}" for column in columns],
    }
    varying = {name: values for name, values in keys.items() if len(set(values)) > 1}
    rows = [
        (
            Field(label),
            *(Field(values[columns.index(column)]) for values in varying.values()),
            *difference_fields(difference.mean, difference),
        )
        for (label, column), difference in found.items()
    ]
    heads = [panels.Column(name, left=True) for name in ("method", *varying)]
    starts = [column for _, column in found]
    breaks = frozenset(place for place in range(1, len(starts)) if starts[place] != starts[place - 1])
    title = ", ".join(
        [f"{name_of(item)}: difference from {item.reference} (points)", *place_of(size, columns)]
    )
    caption = difference_caption(rounds_of(results, columns, metric), found.values())
    return [
        Panel(
            f"{item.name}-differences",
            title,
            (*heads, *difference_columns("difference")),
            len(heads),
            tuple(rows),
            tuple(caption),
            breaks,
        )
    ]


def _between(item: Item, results: Results, label: str, column: Column, metric: str) -> Difference | None:
    ours, theirs = (results.get((name, column.key), ()) for name in (label, item.reference))
    return paired_difference(_by_seed(ours, metric), _by_seed(theirs, metric))


def _by_seed(cell: Sequence[Result], metric: str) -> dict[int, float]:
    return {result.seed: result.accuracy(metric) for result in cell}
