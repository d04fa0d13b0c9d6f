"""How many unlabelled images a threshold leaves out, against how unlike the clients are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import RunError
from proxyfl.paper.figures.bars import draw_bars
from proxyfl.paper.figures.groups import COLUMNS, Group, pseudo_values, seeds, tail
from proxyfl.report import plot_style
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTED = {"visits": "excluded_visits", "different images": "excluded_images"}
"""What is counted, and its name in the metrics."""

Bars = Mapping[str, Mapping[float, Group]]


def excluded_bars(
    runs_by_alpha: Mapping[float, Sequence[Run]], path: str | Path, title: str = ""
) -> tuple[Path, ...]:
    """Excluded unlabelled images per round for each alpha, as PNG, SVG and CSV; gives the three files.

    Counted in the last local epoch of all clients of a round, as visits and as different images; the mean of
    the last rounds.
    """
    if not runs_by_alpha:
        raise RunError("there is no run to draw; start one with 'proxyfl run'")
    bars = {
        counted: {
            alpha: Group.of(f"alpha = {alpha:g}", runs, lambda run, name=name: _per_round(run, name))  # type: ignore[misc]
            for alpha, runs in sorted(runs_by_alpha.items())
        }
        for counted, name in COUNTED.items()
    }
    rows = [
        row
        for counted, by in bars.items()
        for alpha, group in by.items()
        for row in group.rows(alpha, counted)
    ]
    return (
        *plot_style.save(_draw(bars, title or "Excluded unlabelled images"), path),
        plot_style.save_csv(path, ("alpha", "counted", *COLUMNS), rows),
    )


def _per_round(run: Run, name: str) -> float:
    return statistics.fmean(pseudo_values(run, name)[-run.config.keep.last_rounds :])


def _draw(bars: Bars, title: str) -> Figure:
    figure = plot_style.new_figure(6.4, 4.4)
    axes = figure.add_subplot()
    draw_bars(axes, list(bars["visits"]), bars, lambda value: f"{value:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    plot_style.dress(
        axes, title=title, x="alpha (smaller: clients less alike)", y="excluded per round", grid="y"
    )
    figure.legend(
        loc="outside right upper", fontsize=plot_style.TEXT, frameon=False,
        title="counted as", title_fontsize=plot_style.TEXT, alignment="left",
    )  # fmt: skip
    groups = [group for by in bars.values() for group in by.values()]
    counted = f"Counted in the last local epoch of a round's clients; mean of {tail(groups)}."
    plot_style.note(figure, "\n".join(filter(None, (counted, seeds(groups, "line")))))
    return figure
