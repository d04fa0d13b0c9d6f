"""Unsure images: is the true class among the categories kept for them, and is the pseudo-label right?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxyfl.core.errors import RunError
from proxyfl.report import plot_style
from proxyfl.report.curves import MARKERS
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = {"set_recall": "true class in\nthe category set", "low_accuracy": "pseudo-label right"}
"""Names in the metrics, and in the legend."""

LOOKS = {
    "set_recall": plot_style.Look(plot_style.VERMILLION, plot_style.SOLID, "o", 2.2),
    "low_accuracy": plot_style.Look(plot_style.BLUE, plot_style.DASHED, "s", 2.2),
}
COUNTS = ("excluded_visits", "set_size")

Curves = Mapping[str, NDArray[np.float64]]
"""Shares in per cent by name, (runs, rounds); not a number in rounds without an unsure image."""


def recall_curves(runs: Sequence[Run], path: str | Path, title: str = "") -> tuple[Path, ...]:
    """Both shares of the unsure images against rounds, as PNG, SVG and CSV; gives the three files.

    ``runs`` have the same settings and different seeds: the line is their mean over the rounds that all have,
    the band reaches from the lowest to the highest.
    """
    rows = [
        (
            run.config.seed,
            line["round"],
            *(line["pseudo"].get(name, "") for name in (*SHARES, *COUNTS)),
            run.path.name,
        )
        for run in runs
        for line in run.metrics
    ]
    figure = _draw({name: _shares(runs, name) for name in SHARES}, len(runs), title or _title(runs))
    header = ("seed", "round", *SHARES, "visits", "mean_set_size", "run")
    return (*plot_style.save(figure, path), plot_style.save_csv(path, header, rows))


def _title(runs: Sequence[Run]) -> str:
    return f"Images of low confidence: {runs[0].config.method.name} on {runs[0].config.data.name}"


def _shares(runs: Sequence[Run], name: str) -> NDArray[np.float64]:
    if not runs:
        raise RunError("there is no run to draw; start one with 'proxyfl run'")
    lines = [[line["pseudo"].get(name, np.nan) for line in run.metrics] for run in runs]
    for run, values in zip(runs, lines, strict=True):
        if np.isnan(values).all():
            raise RunError(
                f"{run.path} recorded no category sets of unsure images; draw runs of proxyfl or another "
                "method with +icpl, whose threshold leaves images unsure"
            )
    common = min(map(len, lines))
    return 100 * np.array([values[:common] for values in lines])


def _draw(curves: Curves, seeds: int, title: str) -> Figure:
    figure = plot_style.new_figure(8.0, 4.4)
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    for name, values in curves.items():
        look, rounds = LOOKS[name], values.shape[1]
        x = np.arange(1, rounds + 1)
        known = ~np.isnan(values).any(0)
        middle, low, high = (
            np.where(known, form(values, axis=0), np.nan) for form in (np.mean, np.min, np.max)
        )
        axes.plot(
            x, middle, label=SHARES[name], color=look.colour, linestyle=look.line, linewidth=look.width,
            marker=look.marker, markersize=look.size, markevery=max(1, rounds // MARKERS),
            markeredgecolor="white", markeredgewidth=0.6, zorder=3,
        )  # fmt: skip
        if seeds > 1:
            axes.fill_between(x, low, high, color=look.colour, alpha=0.16, linewidth=0)
    plot_style.dress(
        axes, title=title, x="communication round", y="share of low-confidence images (%)", grid="y"
    )
    axes.set_xlim(0.5, rounds + 0.5)
    axes.set_ylim(0, 100)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(
        loc="outside right upper", fontsize=plot_style.TEXT, frameon=False, handlelength=3.2, labelspacing=0.9
    )
    if seeds > 1:
        plot_style.note(figure, f"Line: mean of {seeds} runs with different seeds. Band: lowest to highest.")
    return figure
