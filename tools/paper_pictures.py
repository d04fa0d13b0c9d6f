"""Pictures of exported tables: what each row reached, and how."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxyfl.paper.captions import name_of
from proxyfl.paper.items import Column, Item
from proxyfl.paper.results import Result, Results
from proxyfl.paper.scales import TITLES, Scale
from proxyfl.report import plot_style
from proxyfl.report.curves import draw_curves
from proxyfl.results.cells import span

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cells = Mapping[str, Sequence[Result]]
"""The runs of each row of one column."""


def picture_name(kind: str, item: Item, size: Scale, column: Column) -> str:
    return f"{size.name}-{item.name}-{column.data}-{column.alpha:g}-{kind}.png"


def draw_results(
    kind: str, item: Item, size: Scale, results: Results, column: Column, folder: Path
) -> list[Path]:
    """One column as a ``ranking`` of its rows, as ``curves``, or ``along`` the item's axis, as PNG and SVG.

    The data is the exported CSV.
    """
    every = {row.label: results.get((row.label, column.key), ()) for row in item.rows}
    cells: Cells = {label: cell for label, cell in every.items() if cell}
    title = f"{name_of(item)}, scale {size.name}: {TITLES[column.data]}, α = {column.alpha:g}"
    if kind == "ranking":
        figure = _ranking(same_seeds(cells), title, [row.label for row in item.rows if row.bound])
    elif kind == "along":
        figure = _along(item, cells, title)
    else:
        cells, title = same_seeds(cells), f"{TITLES[column.data]}, Dirichlet α = {column.alpha:g}"
        warm = all(result.start_accuracy is not None for cell in cells.values() for result in cell)
        curves = {label: _curves(cell, warm=warm) for label, cell in cells.items()}
        looks = _distinct(_looks(cells))
        figure = draw_curves(curves, title, legend="", looks=looks, first=0 if warm else 1)
        if {*map(len, cells.values())} == {1}:
            plot_style.note(figure, "One seed.")
    return plot_style.save(figure, folder / picture_name(kind, item, size, column))


def same_seeds(cells: Cells) -> Cells:
    """The runs of the seeds that every row has: means over different seeds cannot be compared."""
    common = set.intersection(*({result.seed for result in cell} for cell in cells.values()))
    kept = {label: [result for result in cell if result.seed in common] for label, cell in cells.items()}
    return kept if common else cells


def _curves(cell: Sequence[Result], *, warm: bool) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """With the accuracy of the common start as round 0, where there is one."""
    common = min(len(result.curve) for result in cell)
    starts = [[result.start_accuracy] if warm else [] for result in cell]
    curves = [[*start, *result.curve[:common]] for start, result in zip(starts, cell, strict=True)]
    return 100 * np.array(curves, dtype=np.float64)


def _looks(cells: Cells) -> dict[str, plot_style.Look]:
    """A row looks like its method; a second row of a method like that method with something added."""
    named: dict[str, str] = {}
    for label, cell in cells.items():
        method = cell[0].method
        named[label] = method if method not in named.values() else f"{method}+{label}"
    looks = plot_style.looks(named.values())
    return {label: looks[name] for label, name in named.items()}


def _distinct(looks: Mapping[str, plot_style.Look]) -> dict[str, plot_style.Look]:
    """A colour of its own for each as long as there is one: bands that overlap have no other mark."""
    found: dict[str, plot_style.Look] = {}
    for label in sorted(looks, key=lambda label: looks[label].line != plot_style.SOLID):
        taken = {look.colour for look in found.values()}
        spare = [colour for colour in (looks[label].colour, *plot_style.COLOURS) if colour not in taken]
        found[label] = dataclasses.replace(looks[label], colour=[*spare, looks[label].colour][0])
    return {label: found[label] for label in looks}


def _ranking(cells: Cells, title: str, bounds: Sequence[str]) -> Figure:
    """The best on top; what saw every label is drawn hollow."""
    reached = {label: [100 * result.mean_last for result in cell] for label, cell in cells.items()}
    order = sorted(reached, key=lambda label: statistics.fmean(reached[label]))
    figure = plot_style.new_figure(8.4, 1.2 + 0.32 * len(order))
    axes = figure.add_subplot()
    for place, (label, look) in enumerate((label, _looks(cells)[label]) for label in order):
        values, hollow = reached[label], label in bounds
        mean = statistics.fmean(values)
        axes.barh(
            place, mean, 0.62, color="white" if hollow else look.colour, alpha=0.35, edgecolor=look.colour
        )
        axes.plot([mean, mean], [place - 0.31, place + 0.31], color=look.colour, linewidth=2.2)
        if len(values) > 1:
            axes.scatter(values, [place] * len(values), s=22, color=look.colour, edgecolor="white", zorder=3)
        axes.text(
            max(values) + 0.6,
            place,
            f"{mean:.1f}",
            va="center",
            fontsize=plot_style.SMALL,
            color=plot_style.INK,
        )
    axes.set_yticks(range(len(order)), order)
    axes.set_xlim(0, 1.08 * max(max(values) for values in reached.values()))
    rounds = next(iter(cells.values()))[0].last_rounds
    plot_style.dress(axes, title=title, x=f"test accuracy (%), mean of the last {rounds} rounds", grid="x")
    counts = {*map(len, cells.values())}
    many = f"Line and number: mean of {span(counts)} seeds. Dots: each of them."
    seeds = "One seed." if counts == {1} else many
    plot_style.note(figure, f"{seeds} Hollow: every label is known.")
    return figure


def _along(item: Item, cells: Cells, title: str) -> Figure:
    """A line for each method through what it reached at each place of the axis."""
    lines: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for row in item.rows:
        if row.at is not None and row.label in cells:
            reached = [100 * result.mean_last for result in cells[row.label]]
            lines.setdefault(row.method, []).append((row.at, reached))
    figure = plot_style.new_figure(7.6, 4.4)
    axes = figure.add_subplot()
    for method, look in plot_style.looks(lines).items():
        places = [place for place, _ in lines[method]]
        means = [statistics.fmean(values) for _, values in lines[method]]
        errors = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in lines[method]]
        axes.errorbar(
            places, means, errors, color=look.colour, linestyle=look.line, linewidth=look.width, marker="o",
            markersize=7, markeredgecolor="white", markeredgewidth=0.6, capsize=3, label=method,
        )  # fmt: skip
    ticks = sorted({place for line in lines.values() for place, _ in line})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=plot_style.SMALL)
    rounds = next(iter(cells.values()))[0].last_rounds
    plot_style.dress(axes, title=title, x=item.axis, y=f"test accuracy (%), mean of the last {rounds} rounds")
    plot_style.note(figure, f"Mean ± standard deviation over {span({*map(len, cells.values())})} seeds.")
    return figure
