"""Tables for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from proxyfl.results.layout import MINUS, NONE, Field, Panel

GAP = 2
"""Blanks between the columns of a terminal."""

STYLES = ("", "bold", "underline")
MARKDOWN = ("{}", "**{}**", "*{}*")
LATEX = ("{}", r"\textbf{{{}}}", r"\underline{{{}}}")

_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\|*_`<>[]"})
_LATEX_SIGNS = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "|": "$|$",
        '"': "''",
        "[": "{[}",
        "]": "{]}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
        "–": "--",
        "α": r"$\alpha$",
        "Θ": r"$\Theta$",
        "ψ": r"$\psi$",
    }
)
SHORT = ("paper", "diff.", "gap", "paper's gap")
"""Headings that need their neighbour's to be understood."""


def to_rich(panels: Sequence[Panel], width: int, warning: str = "") -> RenderableType:
    """Tables for a terminal. One that is too wide goes on below, with its first columns repeated. A
    ``warning`` among the captions is said first.
    """
    parts: list[RenderableType] = []
    if any(warning in panel.caption for panel in panels):
        parts.append(Text(warning, style="bold yellow"))
    for panel, said in zip(panels, _captions(panels, "underlined"), strict=True):
        parts += [Text("")] if parts else []
        parts += [Text(panel.title, style="bold")] if panel.title else []
        for position, columns in enumerate(_pieces(panel, width)):
            parts += [Text("")] if position else []
            parts.append(_piece(panel, columns, width))
        parts += [Text(line, style="dim") for line in said if line != warning]
    return Stack(*parts)


def to_plain(panels: Sequence[Panel], width: int, warning: str = "") -> str:
    """As on a terminal of that width, without colours, for a file."""
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, color_system=None)
    console.print(to_rich(panels, width, warning))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def _captions(panels: Iterable[Panel], second: str) -> Iterator[list[str]]:
    """What to say below each table; nothing is said twice."""
    said: set[str] = set()
    for panel in panels:
        lines = [line for line in _full_caption(panel, second) if line not in said]
        said |= set(lines)
        yield lines


def _full_caption(panel: Panel, second: str) -> list[str]:
    ranked = any(field.rank for row in panel.rows for field in row)
    return [*panel.caption, *([f"Bold: best of its group; {second}: second best."] if ranked else [])]


def _pieces(panel: Panel, width: int) -> Iterator[list[int]]:
    """Columns that fit side by side: the key columns each time, and as many others as there is room for."""
    keys = list(range(panel.keys))
    piece = list(keys)
    for block in _column_blocks(panel):
        if len(piece) > len(keys) and _needs(panel, [*piece, *block]) > width:
            yield piece
            piece = list(keys)
        piece += block
    yield piece


def _column_blocks(panel: Panel) -> list[list[int]]:
    """The columns after the keys, those that belong together as one."""
    blocks: list[list[int]] = []
    for place in range(panel.keys, len(panel.columns)):
        if blocks and panel.columns[place].follows:
            blocks[-1].append(place)
        else:
            blocks.append([place])
    return blocks


def _needs(panel: Panel, columns: Iterable[int]) -> int:
    return sum(_narrowest(panel, column) + GAP for column in columns) - GAP


def _narrowest(panel: Panel, column: int) -> int:
    """Numbers stay whole, a heading may be broken between its words."""
    texts = [row[column].text for row in panel.rows]
    return max(map(len, [*texts, *panel.columns[column].heading.split()]))


def _piece(panel: Panel, columns: Sequence[int], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    spare = width - _needs(panel, columns)
    for column in columns:
        kind, narrowest = panel.columns[column], _narrowest(panel, column)
        more = max(0, min(spare, len(kind.heading) - narrowest))
        spare -= more
        table.add_column(kind.heading, justify="left" if kind.left else "right", width=narrowest + more)
    for number, row in enumerate(panel.rows):
        if number in panel.breaks:
            table.add_row()
        fields = [row[column] for column in columns]
        table.add_row(*(Text(field.text, style=field.tint or STYLES[field.rank]) for field in fields))
    return table


def to_markdown(panels: Sequence[Panel], made_by: str = "") -> str:
    """Tables for a README."""
    parts = [f"<!-- {made_by} -->\n"] if made_by else []
    for panel, said in zip(panels, _captions(panels, "italic"), strict=True):
        lines = [
            [_marked(Field(column.heading), MARKDOWN, _MARKDOWN_SIGNS) for column in panel.columns],
            ["---" if column.left else "---:" for column in panel.columns],
            *([_marked(field, MARKDOWN, _MARKDOWN_SIGNS) for field in row] for row in panel.rows),
        ]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        below = f"\n{' '.join(said).translate(_MARKDOWN_SIGNS)}\n" if said else ""
        title = f"**{panel.title.translate(_MARKDOWN_SIGNS)}**\n\n" if panel.title else ""
        parts.append(f"{title}{table}{below}")
    return "\n".join(parts)


def to_latex(panels: Sequence[Panel], made_by: str = "") -> str:
    """Tables for a paper; they need the package booktabs."""
    head = [f"% {' '.join(made_by.split())}"] if made_by else []
    return "\n".join([*head, r"% needs \usepackage{booktabs}", *map(_latex_table, panels)]) + "\n"


def _latex_table(panel: Panel) -> str:
    caption = " ".join([f"{panel.title}.", *_full_caption(panel, "underlined")]).translate(_LATEX_SIGNS)
    lines = [
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \label{{tab:{panel.name}}}",
        rf"  \begin{{tabular}}{{{''.join('l' if column.left else 'r' for column in panel.columns)}}}",
        r"    \toprule",
        _latex_row([Field(column.heading) for column in panel.columns]),
        r"    \midrule",
    ]
    for number, row in enumerate(panel.rows):
        lines += [r"    \midrule"] if number in panel.breaks else []
        lines.append(_latex_row(row))
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def _latex_row(row: Iterable[Field]) -> str:
    return "    " + " & ".join(_marked(field, LATEX, _LATEX_SIGNS) for field in row) + r" \\"


def _marked(field: Field, marks: Sequence[str], signs: dict[int, str]) -> str:
    return marks[field.rank].format(field.text.translate(signs))


def to_csv(panels: Sequence[Panel], **about: str) -> str:
    """One row per number, after what they all are ``about``: its table, row and column, its value and, over
    several seeds, its standard deviation.

    A speed-up that stands in parentheses behind a number has a row of its own.
    """
    rows: list[list[str]] = []
    for panel in panels:
        names = _column_names(panel)
        for row in panel.rows:
            keys = [*about.values(), panel.title, row[0].text]
            for place, name in names.items():
                shown = "" if row[place].text == NONE else row[place].text.replace(MINUS, "-")
                number, faster, times = shown.removesuffix(")").partition(" (×")
                value, _, std = (number if faster else shown).partition(" ± ")
                rows.append([*keys, name, value, std])
                if faster:
                    rows.append([*keys, f"{name}: speed-up", times, ""])
    return csv_text([*about, "table", "row", "column", "value", "std"], rows)


def _column_names(panel: Panel) -> dict[int, str]:
    """Columns after the keys, by place; a heading that says too little is put behind its neighbour's."""
    names: dict[int, str] = {}
    for first, *others in _column_blocks(panel):
        names[first] = panel.columns[first].heading
        before = names[first].removesuffix("ours")
        for place in others:
            heading = panel.columns[place].heading
            if heading in SHORT:
                heading = f"{before}{heading}" if before != names[first] else f"{before}: {heading}"
            names[place] = heading
    return names


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file's content."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
