"""Rounds to an accuracy, ours beside the published ones; and what they cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from proxyfl.paper.captions import counted, name_of, remarks
from proxyfl.paper.items import Column, Item, Row
from proxyfl.paper.plan import column_title
from proxyfl.paper.published import published
from proxyfl.paper.results import Results
from proxyfl.paper.scales import TARGETS, Scale
from proxyfl.results import layout
from proxyfl.results.cells import median_rounds, share_of
from proxyfl.results.layout import NONE, Field, Panel, signed

NEUTRAL = "cyan"
"""The colour of a difference that is neither good nor bad."""

BASE = "LPL"
"""Relative to whom the paper counts speed-ups."""


def targets(size: Scale, results: Results, rows: Iterable[Row], column: Column) -> list[float]:
    """Accuracies to which rounds are counted, from 0 to 1; none where there is no run to derive them from.

    Those that are relative to the best are rounded to whole per cent.
    """
    if not size.relative:
        return list(size.targets)
    found = (results.get((row.label, column.key), ()) for row in rows)
    means = [statistics.fmean(each.mean_last for each in cell) for cell in found if cell]
    return [share_of(max(means), share) for share in size.targets] if means else []


def rounds_panel(item: Item, size: Scale, results: Results, column: Column) -> Panel:
    """A table of rounds, with the speed-up over FixMatch-LPL in parentheses, and how many more ours are."""
    aims = targets(size, results, item.rows, column)
    printed, labels = published(item.name), [row.label for row in item.rows]
    heads = [layout.Column("method", left=True)]
    pillars: list[list[Field]] = []
    for place, theirs in enumerate(TARGETS):
        key = f"{column.key}:{100 * theirs:.0f}"
        paper = {label: printed.get(label, key) for label in labels}
        ours = {
            label: median_rounds(results.get((label, column.key), ()), aims[place]) if aims else None
            for label in labels
        }
        to = f"ours, to {100 * aims[place]:.0f} %" if aims else "ours"
        printed_to = layout.Column(f"paper, to {100 * theirs:.0f} %", follows=True)
        heads += [layout.Column(to), printed_to, layout.Column("diff.", follows=True)]
        pillars += [[Field(_with_speed(found, label)) for label in labels] for found in (ours, paper)]
        pillars.append([_more(ours[label], paper[label]) for label in labels])
    rows = list(zip(map(Field, labels), *pillars, strict=True))
    title = f"{name_of(item)}: rounds to an accuracy (speed-up over {BASE}), "
    title += f"{column_title(column.data, size)}, α = {column.alpha:g}"
    seeds = counted(item, results, [column], "Median")
    caption = [*_caption(size), *seeds, *remarks(item, size, [column])]
    return Panel(f"{item.name}-{column.alpha:g}", title, tuple(heads), 1, tuple(rows), tuple(caption))


def _caption(size: Scale) -> list[str]:
    lines = [
        f"Ours: the first round that reaches it; {NONE}: not every seed does, or the paper has no number. "
        "diff.: difference from the paper in rounds."
    ]
    if size.relative:
        shares = ", ".join(f"{100 * share:.0f}" for share in size.targets)
        lines.append(
            f"Ours are the rounds to {shares} % of the best mean of the last rounds. The paper's targets are "
            "the same shares of its best, so diff. compares rounds to different accuracies."
        )
    return lines


def _with_speed(rounds: Mapping[str, float | None], label: str) -> str:
    own, base = rounds[label], rounds.get(BASE)
    if own is None:
        return NONE
    return f"{own:g} (×{base / own:.2f})" if base else f"{own:g}"


def _more(ours: float | None, theirs: float | None) -> Field:
    if ours is None or theirs is None:
        return Field(NONE)
    return Field(signed(ours - theirs, "+g"), tint=NEUTRAL)


def cost_panel(item: Item, size: Scale, results: Results, column: Column) -> Panel:
    """What it takes to get to the highest target: rounds, processor time and megabytes, as medians."""
    aims = targets(size, results, item.rows, column)
    heads = ("rounds", "core-minutes", "MB sent")
    rows = []
    for label in (row.label for row in item.rows):
        cell = results.get((label, column.key), ())
        reached = median_rounds(cell, aims[-1]) if aims else None
        fields = [Field(NONE)] * len(heads)
        if reached is not None:
            timed = [each.cpu_seconds / each.rounds / 60 for each in cell if each.cpu_seconds]
            sent = statistics.fmean(each.megabytes / each.rounds for each in cell)
            minutes = f"{reached * statistics.fmean(timed):.1f}" if timed else NONE
            fields = [Field(f"{reached:g}"), Field(minutes), Field(f"{reached * sent:.1f}")]
        rows.append((Field(label), *fields))
    aim = f"{100 * aims[-1]:.0f} %" if aims else "an accuracy"
    title = f"{item.title}: to {aim}, {column_title(column.data, size)}, α = {column.alpha:g}"
    caption = [
        f"Rounds: the first round that reaches it, median over seeds; {NONE}: not every seed does. Times and "
        "megabytes: this many rounds at the mean cost of a round. A common start is not counted.",
        *counted(item, results, [column], "Median"),
        *remarks(item, size, [column]),
    ]
    columns = (layout.Column("method", left=True), *map(layout.Column, heads))
    return Panel(f"{item.name}-{column.alpha:g}", title, columns, 1, tuple(rows), tuple(caption))
