"""Tables of a comparison for a terminal, as Markdown, as LaTeX and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from proxyfl.report.compare import METRICS, Cell, Comparison
from proxyfl.report.keys import changed, plain
from proxyfl.report.panels import Field, Panel, Question, speed_up

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
    }
)


def to_rich(panels: Sequence[Panel], width: int, warning: str = "") -> RenderableType:
    """Tables for a terminal. One that is too wide goes on below, with its first columns repeated. A
    ``warning`` among the captions is said first.
    """
    parts: list[RenderableType] = []
    if any(warning in panel.caption for panel in panels):
        parts.append(Text(warning, style="bold yellow"))
    for panel, said in zip(panels, _captions(panels, "underlined"), strict=True):
        parts += [Text("")] if parts else []
        parts.append(Text(panel.title, style="bold"))
        for position, columns in enumerate(_pieces(panel, width)):
            parts += [Text("")] if position else []
            parts.append(_piece(panel, columns, width))
        parts += [Text(line, style="dim") for line in said if line != warning]
    return Stack(*parts)


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
    for block in column_blocks(panel):
        if len(piece) > len(keys) and _needs(panel, [*piece, *block]) > width:
            yield piece
            piece = list(keys)
        piece += block
    yield piece


def column_blocks(panel: Panel) -> list[list[int]]:
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
        parts.append(f"**{panel.title.translate(_MARKDOWN_SIGNS)}**\n\n{table}{below}")
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


def to_csv(comparison: Comparison, asked: Question) -> str:
    """One row per cell, numbers in full: accuracies from 0 to 1."""
    own = list(dict.fromkeys(key for contender in comparison.contenders for key, _ in contender.own))
    header = [
        "method", *own, *comparison.settings, "seeds", "which_seeds",
        *(f"{metric.replace('-', '_')}_{part}" for metric in METRICS for part in ("mean", "std")),
        "target", "rounds_to_target", "baseline", "speed_up", "metric", "rank", "gain",
    ]  # fmt: skip
    if asked.against:
        header += ["against", "difference", "low", "high", "pairs", "verdict"]
    rows = []
    for cell in (cell for group in comparison.groups for cell in comparison.in_group(group)):
        mine = dict(cell.contender.own)
        spreads = [cell.spread(metric) for metric in METRICS]
        row: list[Any] = [cell.contender.method, *(plain(mine[key]) if key in mine else "" for key in own)]
        row += [*map(plain, cell.group), len(cell.seeds), " ".join(map(str, cell.seeds))]
        row += [number for spread in spreads for number in (spread.mean, spread.std)]
        aim = asked.targets[cell.group]
        row += [aim, cell.rounds_to(aim), asked.baseline, speed_up(comparison, cell, asked)]
        ranked, gain = comparison.ranked(cell.group, asked.metric), comparison.gain(cell.group, asked.metric)
        leads = gain is not None and gain.best == cell.contender
        place = ranked.index(cell) + 1 if cell in ranked else None
        row += [asked.metric, place, gain.paired.mean if gain and gain.paired and leads else None]
        rows.append([*row, *_difference(comparison, cell, asked)])
    return _csv(header, rows)


def _difference(comparison: Comparison, cell: Cell, asked: Question) -> list[Any]:
    if not asked.against:
        return []
    base = comparison.cells.get((asked.against, cell.group))
    found = cell.against(base, asked.metric) if base and base is not cell else None
    if found is None:
        return [asked.against, *[None] * 5]
    return [asked.against, found.mean, found.low, found.high, found.pairs, found.verdict]


def each_run_to_csv(comparison: Comparison, asked: Question) -> str:
    """One row per run, numbers in full."""
    own = list(dict.fromkeys(key for contender in comparison.contenders for key, _ in contender.own))
    keys = [*own, *comparison.settings]
    header = [
        "run", "method", *keys, "seed", "finished", "rounds", "mean_last", "last_rounds", "last", "best",
        "best_round", "target", "rounds_to_target", "seconds", "megabytes", "preset", "changed", "commit",
    ]  # fmt: skip
    rows: list[list[Any]] = []
    for cell in (cell for group in comparison.groups for cell in comparison.in_group(group)):
        aim = asked.targets[cell.group]
        for outcome in cell.outcomes:
            found = outcome.summary
            rows.append([
                outcome.name, outcome.method, *(plain(outcome.settings.get(key, "")) for key in keys),
                outcome.seed, plain(outcome.finished), found.rounds, found.mean_last, outcome.tail,
                found.last, found.best, found.best_round, aim,
                outcome.rounds_to(aim), found.seconds, found.megabytes,
                outcome.settings["preset"], changed(outcome.settings), outcome.commit,
            ])  # fmt: skip
    return _csv(header, rows)


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
