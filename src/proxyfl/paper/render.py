"""Tables of an item for files: plain text, LaTeX with Greek letters, CSV beside the published numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console

from proxyfl.report import formats
from proxyfl.report.panels import MINUS, NONE, Panel

FILE_WIDTH = 100
GREEK = {"α": "alpha", "Θ": "Theta", "ψ": "psi"}


def to_plain(panels: Sequence[Panel], warning: str = "") -> str:
    """As on a terminal, without colours, for a file."""
    text = io.StringIO()
    console = Console(file=text, width=FILE_WIDTH, highlight=False, color_system=None)
    console.print(formats.to_rich(panels, FILE_WIDTH, warning))
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
            for block in formats.column_blocks(panel):
                first = panel.columns[block[0]].heading
                for place in block:
                    heading = panel.columns[place].heading
                    name = heading if place == block[0] else f"{first.removesuffix(': ours')}: {heading}"
                    shown = "" if row[place].text == NONE else row[place].text.replace(MINUS, "-")
                    value, _, std = shown.partition(" ± ")
                    writer.writerow([item, scale, panel.title, row[0].text, name, value, std])
    return text.getvalue()
