"""What stands above and below the tables of an item."""

from __future__ import annotations

from collections.abc import Sequence

from proxyfl.paper.items import Column, Item
from proxyfl.paper.plan import column_title
from proxyfl.paper.results import Result, Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.results.cells import span
from proxyfl.results.layout import NONE

METRIC_WORDS = {"last": "last round", "best": "best round, chosen on the test data"}


def name_of(item: Item) -> str:
    return item.name.replace("table", "Table ").replace("fig", "Figure ")


def place_of(size: Scale, columns: Sequence[Column]) -> list[str]:
    """Data set and alpha, as far as the columns have one."""
    names = dict.fromkeys(column.data for column in columns)
    alphas = dict.fromkeys(column.alpha for column in columns)
    words = []
    if len(names) == 1:
        words.append(column_title(columns[0].data, size))
    elif any(size.protocols[name].preset != name for name in names):
        words.append("every column on digits")
    return words + [f"α = {alpha:g}" for alpha in alphas if len(alphas) == 1 < len(names)]


def rounds_of(results: Results, columns: Sequence[Column], metric: str) -> str:
    """Which rounds an accuracy is of."""
    if metric in METRIC_WORDS:
        return METRIC_WORDS[metric]
    tails = span(each.last_rounds for cell in cells_of(results, columns) for each in cell)
    return " ".join(filter(None, ["mean of the last", tails, "rounds"]))


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
    if counts := {len(cell) for cell in cells}:
        lines.append("One seed." if counts == {1} else f"{kind} over {span(counts)} seeds.")
    return [*lines, f"{NONE}: not run yet ({missing} cells)."] if missing else lines


def bounds(item: Item) -> list[str]:
    """Who has no rank though it has numbers; pictures rank nobody."""
    names = [row.label for row in item.rows if row.bound and not item.picture]
    return [f"{', '.join(names)}: uses every label, so it is not ranked."] if names else []


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
