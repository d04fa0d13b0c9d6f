"""Accuracy against the epochs that the server spends on tuning proxies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import RunError
from proxyfl.paper.figures.groups import COLUMNS, Group, accuracy, seeds, tail
from proxyfl.report import plot_style
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITHOUT = "without tuning"


def tuning_epochs(
    runs_by_epochs: Mapping[int, Sequence[Run]], without: Sequence[Run], path: str | Path, title: str = ""
) -> tuple[Path, ...]:
    """Accuracy for each number of tuning epochs, and of runs without tuning as a line across.

    Accuracies are means of the last rounds. As PNG, SVG and CSV; gives the three files.
    """
    if not runs_by_epochs:
        raise RunError("there is no run to draw; start one with 'proxyfl run'")
    if min(runs_by_epochs) < 1:
        raise RunError("0 epochs are no tuning; give those runs as the ones without")
    points = {
        epochs: Group.of(f"{epochs} tuning epochs", runs, accuracy)
        for epochs, runs in sorted(runs_by_epochs.items())
    }
    line = Group.of(f"a method {WITHOUT}", without, accuracy)
    rows = [*line.rows(WITHOUT), *(row for epochs, group in points.items() for row in group.rows(epochs))]
    title = title or f"Epochs of proxy tuning on {without[0].config.data.name}"
    return (
        *plot_style.save(_draw(points, line, title), path),
        plot_style.save_csv(path, ("epochs", *COLUMNS), rows),
    )


def _draw(points: Mapping[int, Group], without: Group, title: str) -> Figure:
    figure = plot_style.new_figure(7.6, 4.4)
    from matplotlib.ticker import NullLocator

    axes = figure.add_subplot()
    look, flat = plot_style.own_looks()["proxyfl"], without.spread.mean
    axes.axhline(
        flat, color=plot_style.INK, linestyle=plot_style.DASHED, linewidth=1.8, label=WITHOUT, zorder=2
    )
    if without.error:
        axes.axhspan(
            flat - without.error, flat + without.error, color=plot_style.INK, alpha=0.10, linewidth=0
        )
    axes.errorbar(
        list(points), [group.spread.mean for group in points.values()],
        [group.error for group in points.values()], color=look.colour, linestyle=look.line,
        linewidth=look.width, marker="o", markersize=8, markeredgecolor="white", markeredgewidth=0.6,
        capsize=4, ecolor=plot_style.INK, elinewidth=1.2, label="with tuning", zorder=3,
    )  # fmt: skip
    for epochs, group in points.items():
        axes.annotate(
            f"{group.spread.mean:.1f}", (epochs, group.spread.mean), (7, 7), textcoords="offset points",
            fontsize=plot_style.SMALL, color=plot_style.INK,
        )  # fmt: skip
    plot_style.dress(axes, title=title, x="tuning epochs per round, Q", y="test accuracy (%)", grid="y")
    axes.set_xscale("log")
    axes.set_xticks(list(points), [str(epochs) for epochs in points])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(points) / 1.5, max(points) * 1.7)
    axes.margins(y=0.15)
    figure.legend(loc="outside right upper", fontsize=plot_style.TEXT, frameon=False, handlelength=3.2)
    groups = [without, *points.values()]
    plot_style.note(figure, f"Accuracies: mean of {tail(groups)}. {seeds(groups, 'bars and shade')}".strip())
    return figure
