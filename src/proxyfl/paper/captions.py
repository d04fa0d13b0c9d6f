"""What stands above and below the tables of an item."""

from __future__ import annotations

from collections.abc import Sequence

from proxyfl.paper.catalogue import Column, Item
from proxyfl.paper.results import Result, Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report.panels import NONE


def name_of(item: Item) -> str:
    return item.name.replace("table", "Table ").replace("fig", "Figure ")


def cells_of(results: Results, columns: Sequence[Column]) -> list[Sequence[Result]]:
    keys = {column.key for column in columns}
    return [cell for (_, key), cell in results.items() if key in keys]


def counted(
    item: Item, results: Results, columns: Sequence[Column], kind: str = "Mean ± standard deviation"
) -> list[str]:
    """What is said of how many seeds, and how many cells have none yet."""
    cells = cells_of(results, columns)
    missing = len(item.rows) * len(columns) - len(cells)
    lines = []
    if counts := sorted({len(cell) for cell in cells}):
        over = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append("One seed." if counts == [1] else f"{kind} over {over} seeds.")
    return [*lines, f"{NONE}: not run yet ({missing} cells)."] if missing else lines


def bounds(item: Item) -> list[str]:
    """Who has no rank though it has numbers; pictures rank nobody."""
    names = [row.label for row in item.rows if row.bound and not item.picture]
    return [f"{', '.join(names)}: knows every label, so it is not ranked."] if names else []


def remarks(item: Item, size: Scale, columns: Sequence[Column]) -> list[str]:
    untried = [
        TITLES[name]
        for name in dict.fromkeys(column.data for column in columns)
        if not size.protocols[name].tried
    ]
    lines = [size.warning] if size.warning else []
    if untried:
        lines.append(f"Untried protocol: {', '.join(untried)}.")
    return [*lines, *item.notes]
