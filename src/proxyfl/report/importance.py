"""Which settings mattered in a search, as bars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from proxyfl.report import plot_style as style


def draw_importances(shares: Mapping[str, float], path: Path) -> list[Path]:
    """``path`` as PNG and SVG, the most important setting on top."""
    ordered = sorted(shares.items(), key=lambda item: item[1])
    figure = style.new_figure(7, 1.4 + 0.4 * len(ordered))
    axes = figure.add_subplot()
    axes.barh([name for name, _ in ordered], [100 * share for _, share in ordered], color=style.BLUE)
    style.dress(axes, title="Which settings mattered", x="importance (%)", grid="x")
    return style.save(figure, path)
