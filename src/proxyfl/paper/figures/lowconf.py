"""What images of low confidence do: left out, taken in, or taken in with corrected labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import RunError
from proxyfl.paper.figures.bars import draw_bars
from proxyfl.paper.figures.groups import COLUMNS, Group, accuracy, pseudo_accuracy, seeds, tail
from proxyfl.report import plot_style
from proxyfl.report.curves import accuracy_curves
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"test accuracy": accuracy, "pseudo-label accuracy": pseudo_accuracy}

LOOKS = (
    plot_style.Look(plot_style.BLACK, plot_style.DASHED, "o", 2.2),
    plot_style.Look(plot_style.SKY, plot_style.DOTTED, "^", 2.2),
    plot_style.Look(plot_style.BLUE, plot_style.DASH_DOT, "s", 2.2),
    plot_style.Look(plot_style.VERMILLION, plot_style.SOLID, "D", 2.2),
)
"""Of images left out, and of growing shares of corrected labels."""

Bars = Mapping[str, Mapping[float, Group]]


def low_confidence_bars(
    runs: Mapping[str, Mapping[float, Sequence[Run]]], path: str | Path, title: str = ""
) -> tuple[Path, ...]:
    """Test and pseudo-label accuracy against alpha by label, as PNG, SVG and CSV; gives the three files.

    ``runs`` has the runs by label (with and without images of low confidence, ProxyFL) and alpha. Accuracies
    are means of the last rounds; that of pseudo-labels counts every visit of the last local epoch.
    """
    if not any(runs.values()):
        raise RunError("there is no run to draw; start one with 'proxyfl run'")
    panels = {
        measure: {
            label: {
                alpha: Group.of(f"{label}, alpha = {alpha:g}", each, value)
                for alpha, each in sorted(by_alpha.items())
            }
            for label, by_alpha in runs.items()
        }
        for measure, value in MEASURES.items()
    }
    rows = [
        row
        for measure, bars in panels.items()
        for label, by_alpha in bars.items()
        for alpha, group in by_alpha.items()
        for row in group.rows(label, alpha, measure)
    ]
    return (
        *plot_style.save(_draw(panels, title or "Images of low confidence"), path),
        plot_style.save_csv(path, ("label", "alpha", "measure", *COLUMNS), rows),
    )


def oracle_curves(
    runs: Mapping[str, Sequence[Run]], path: str | Path, title: str = "", *, every: int = 1
) -> tuple[Path, ...]:
    """Accuracy curves for images of low confidence left out, and taken in with a share of corrected labels.

    ``runs`` has the runs by what the legend shall say; ``every`` draws a point each so many rounds.
    """
    title = title or "Images of low confidence with corrected labels (oracle)"
    looks = dict(zip(runs, LOOKS, strict=False))
    return tuple(accuracy_curves(runs, path, title, every=every, legend="low-confidence images", looks=looks))


def _draw(panels: Mapping[str, Bars], title: str) -> Figure:
    figure = plot_style.new_figure(10.4, 4.8)
    figure.suptitle(
        title, fontsize=plot_style.TITLE + 1, color=plot_style.INK, x=0.01, ha="left", fontweight="bold"
    )
    notes = []
    for axes, (measure, bars) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        alphas = sorted({alpha for by_alpha in bars.values() for alpha in by_alpha})
        floor = draw_bars(axes, alphas, bars, lambda value: f"{value:.1f}")
        plot_style.dress(
            axes,
            title=measure.capitalize(),
            x="alpha (smaller: clients less alike)",
            y="accuracy (%)",
            grid="y",
        )
        if floor:
            notes.append(f"The axis of {measure} begins at {floor:g} %.")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper right", ncols=len(labels), fontsize=plot_style.TEXT, frameon=False
    )
    groups = [group for bars in panels.values() for by_alpha in bars.values() for group in by_alpha.values()]
    averaged = f"Accuracies: mean of {tail(groups)}. {seeds(groups, 'line')}".strip()
    plot_style.note(figure, "\n".join(filter(None, (averaged, " ".join(notes)))))
    return figure
