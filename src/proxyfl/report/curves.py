"""Accuracy against rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.text import name_alone
from proxyfl.report import plot_style
from proxyfl.results.cells import span
from proxyfl.runs.directory import accuracy_called, measured
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = 8
"""Markers along a line: enough to tell lines apart in greyscale."""

MOST_TICKS = 12
"""Rounds up to which every one that is drawn is named on the axis."""

Curves = dict[str, NDArray[np.float64]]
"""Accuracy in per cent by method, (runs, rounds); NaN where it was not measured."""


def accuracy_curves(
    runs: Mapping[str, Sequence[Run]],
    path: str | Path,
    title: str = "",
    *,
    every: int = 1,
    legend: str = "method",
    looks: Mapping[str, plot_style.Look] | None = None,
) -> list[Path]:
    """Test accuracy of each method's runs, as PNG, SVG and CSV; gives the three files.

    Where a method has several runs, the line is their mean over the rounds that all have measured and the
    band reaches from the lowest to the highest. ``every`` draws the rounds that it divides, each with its
    marker, and the last; the CSV has all. ``legend`` says what the names are;
    those that are no methods may bring ``looks``.
    """
    rows = [
        (method, run.config.seed, line["round"], line["accuracy"], run.path.name)
        for method, each in runs.items()
        for run in each
        for line in measured(run.metrics)
    ]
    names = dict.fromkeys(name_alone(run.config.data.name) for each in runs.values() for run in each)
    figure = draw_curves(
        {method: _accuracies(method, each) for method, each in runs.items()},
        title or f"Test accuracy on {', '.join(names)}",
        every,
        legend,
        looks,
        y=f"{accuracy_called(run.metrics for each in runs.values() for run in each)} (%)",
    )
    return [
        *plot_style.save(figure, path),
        plot_style.save_csv(path, ("method", "seed", "round", "accuracy", "run"), rows),
    ]


def _accuracies(method: str, runs: Sequence[Run]) -> NDArray[np.float64]:
    lines = [[line.get("accuracy", np.nan) for line in run.metrics] for run in runs]
    common = min(map(len, lines), default=0)
    if not common:
        raise RunError(f"not every run of {method} has finished a round; continue with 'proxyfl resume RUN'")
    found = 100 * np.array([line[:common] for line in lines])
    if not _measured_by_all(found).any():
        raise RunError(f"the runs of {method} have no evaluated round in common (federation.evaluate_every)")
    return found


def _measured_by_all(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray(~np.isnan(values).any(0))


def drawn_rounds(rounds: int, every: int, first: int = 1) -> NDArray[np.int64]:
    """Those that ``every`` divides, and the last."""
    return np.array([k for k in range(first, rounds + 1) if k % every == 0 or k == rounds], dtype=np.int64)


def draw_curves(
    curves: Curves,
    title: str,
    every: int = 1,
    legend: str = "method",
    looks: Mapping[str, plot_style.Look] | None = None,
    first: int = 1,
    y: str = "test accuracy (%)",
) -> Figure:
    """Lines of accuracies, or of what ``y`` says; :func:`accuracy_curves` explains the rest. ``first`` is the
    round they begin with: 0 where the common start is among them.
    """
    if not curves:
        raise RunError("there is no run to draw; start one with 'proxyfl run'")
    if every < 1:
        raise ConfigError(f"a point every {every} rounds cannot be drawn; use 1 or more")
    figure = plot_style.new_figure(8.4, 4.6)
    from matplotlib.ticker import MaxNLocator

    axes = figure.add_subplot()
    rounds = max(values.shape[1] for values in curves.values()) + first - 1
    looks = plot_style.looks(curves) | dict(looks or {})
    apart = max(1, rounds // MARKERS) if every == 1 else 1
    last = {method: values.mean(0)[_measured_by_all(values)][-1] for method, values in curves.items()}
    by_last = sorted(curves, key=lambda method: float(last[method]), reverse=True)
    for position, method in enumerate(by_last):
        x, look = drawn_rounds(curves[method].shape[1] + first - 1, every, first), looks[method]
        x = x[_measured_by_all(curves[method])[x - first]]
        values = curves[method][:, x - first]
        axes.plot(
            x, values.mean(0), label=method, color=look.colour, linestyle=look.line, linewidth=look.width,
            marker=look.marker, markersize=look.size, markevery=(position % apart, apart),
            markeredgecolor="white", markeredgewidth=0.6, zorder=3,
        )  # fmt: skip
        if len(values) > 1:
            axes.fill_between(x, values.min(0), values.max(0), color=look.colour, alpha=0.16, linewidth=0)
    plot_style.dress(axes, title=title, x="communication round", y=y, grid="y")
    axes.set_xlim(first - 0.5, rounds + 0.5)
    if every > 1 and rounds // every <= MOST_TICKS:
        axes.set_xticks(drawn_rounds(rounds, every))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    figure.legend(
        loc="outside right upper", fontsize=plot_style.TEXT, frameon=False, handlelength=3.2,
        title=legend, title_fontsize=plot_style.TEXT, alignment="left",
    )  # fmt: skip
    counts = {*map(len, curves.values())}
    if counts != {1}:
        plot_style.note(
            figure, f"Line: mean of {span(counts)} runs with different seeds. Band: lowest to highest."
        )
    return figure
