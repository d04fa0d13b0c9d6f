"""Tables of an item for a terminal, with differences in colour, and for files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxyfl.report import formats
from proxyfl.report.panels import MINUS, NONE, Panel

GAP = 2
STYLES = ("", "bold", "underline")
FOLLOWING = ("paper", "diff.")
"""How headings begin that belong to the column before them."""

FILE_WIDTH = 100
GREEK = {"α": "alpha", "Θ": "Theta", "ψ": "psi"}


def to_rich(panels: Sequence[Panel], width: int, warning: str = "") -> RenderableType:
    """Tables for a terminal; those that are too wide go on below. ``warning`` is moved from the captions to
    the top.
    """
    captions = dict.fromkeys(line for panel in panels for line in panel.caption)
    parts: list[RenderableType] = []
    if warning in captions:
        del captions[warning]
        parts.append(Text(warning, style="bold yellow"))
    for panel in panels:
        parts += [Text("")] if parts else []
        parts.append(Text(panel.title, style="bold"))
        for place, columns in enumerate(_pieces(panel, width)):
            parts += [Text("")] if place else []
            parts.append(_piece(panel, columns, width))
    return Group(*parts, *(Text(line, style="dim") for line in captions))


def _pieces(panel: Panel, width: int) -> Iterator[list[int]]:
    """Columns that fit side by side; ours, the paper's and the difference stay together."""
    keys = list(range(panel.keys))
    piece = list(keys)
    for block in _blocks(panel):
        if len(piece) > len(keys) and _needs(panel, [*piece, *block]) > width:
            yield piece
            piece = list(keys)
        piece += block
    yield piece


def _blocks(panel: Panel) -> list[list[int]]:
    blocks: list[list[int]] = []
    for place in range(panel.keys, len(panel.columns)):
        if blocks and panel.columns[place].heading.startswith(FOLLOWING):
            blocks[-1].append(place)
        else:
            blocks.append([place])
    return blocks


def _needs(panel: Panel, columns: Sequence[int]) -> int:
    return sum(_narrowest(panel, column) + GAP for column in columns) - GAP


def _narrowest(panel: Panel, column: int) -> int:
    """Numbers stay whole, a heading may be broken between its words."""
    texts = [row[column].text for row in panel.rows]
    return max(map(len, [*texts, *panel.columns[column].heading.split()]))


def _piece(panel: Panel, columns: Sequence[int], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    whole = (
        sum(max(_narrowest(panel, each), len(panel.columns[each].heading)) + GAP for each in columns) - GAP
    )
    for column in columns:
        head, narrowest = panel.columns[column], _narrowest(panel, column)
        wide = max(narrowest, len(head.heading)) if whole <= width else narrowest
        table.add_column(head.heading, justify="left" if head.left else "right", width=wide)
    for number, row in enumerate(panel.rows):
        if number in panel.breaks:
            table.add_row()
        fields = (row[column] for column in columns)
        table.add_row(
            *(Text(each.text, style=getattr(each, "tint", "") or STYLES[each.rank]) for each in fields)
        )
    return table


def to_plain(panels: Sequence[Panel], warning: str = "") -> str:
    """As on a terminal, without colours, for a file."""
    text = io.StringIO()
    console = Console(file=text, width=FILE_WIDTH, highlight=False, color_system=None)
    console.print(to_rich(panels, FILE_WIDTH, warning))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def to_latex(panels: Sequence[Panel], made_by: str) -> str:
    """Tables for a paper, with Greek letters as LaTeX has them; they need the package booktabs."""
    text = formats.to_latex(panels, made_by)
    for letter, name in GREEK.items():
        text = text.replace(letter, rf"$\{name}$")
    return text


def to_csv(panels: Sequence[Panel], item: str, scale: str) -> str:
    """One row per number: whose it is, its value and, over several seeds, its standard deviation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["item", "scale", "table", "row", "column", "value", "std"])
    for panel in panels:
        for row in panel.rows:
            for block in _blocks(panel):
                first = panel.columns[block[0]].heading
                for place in block:
                    heading = panel.columns[place].heading
                    name = heading if place == block[0] else f"{first.removesuffix(': ours')}: {heading}"
                    shown = "" if row[place].text == NONE else row[place].text.replace(MINUS, "-")
                    value, _, std = shown.partition(" ± ")
                    writer.writerow([item, scale, panel.title, row[0].text, name, value, std])
    return text.getvalue()
