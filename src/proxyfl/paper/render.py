"""Tables of an item for files: plain text, LaTeX with Greek letters, CSV beside the published numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console

from proxyfl.report import formats
from proxyfl.report.panels import MINUS, NONE, Panel

FILE_WIDTH = 100
SHORT = ("paper", "diff.", "gap", "paper's gap")
"""Headings that need their neighbour's to be understood."""

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
    """One row per number: whose it is, its value and, over several seeds, its standard deviation.

    A speed-up that stands in parentheses behind a number has a row of its own.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["item", "scale", "table", "row", "column", "value", "std"])
    for panel in panels:
        names = _column_names(panel)
        for row in panel.rows:
            about = [item, scale, panel.title, row[0].text]
            for place, name in names.items():
                shown = "" if row[place].text == NONE else row[place].text.replace(MINUS, "-")
                number, faster, times = shown.removesuffix(")").partition(" (×")
                value, _, std = (number if faster else shown).partition(" ± ")
                writer.writerow([*about, name, value, std])
                if faster:
                    writer.writerow([*about, f"{name}: speed-up", times, ""])
    return text.getvalue()


def _column_names(panel: Panel) -> dict[int, str]:
    """Columns after the keys, by place; a heading that says too little is put behind its neighbour's."""
    names: dict[int, str] = {}
    for first, *others in formats.column_blocks(panel):
        names[first] = panel.columns[first].heading
        before = names[first].removesuffix("ours")
        for place in others:
            heading = panel.columns[place].heading
            if heading in SHORT:
                heading = f"{before}{heading}" if before != names[first] else f"{before}: {heading}"
            names[place] = heading
    return names
