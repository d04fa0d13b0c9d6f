"""Draw ``docs/images/scenarios.png`` and ``.svg``: who has labels in each of the three scenarios.

python tools/scenarios.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.dealing import CLIENTS, PARTIAL, SERVER
from proxyfl.report import plot_style
from proxyfl.report.plot_style import BLUE, INK, MUTED, SMALL, TEXT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scenarios.png"
IMAGES, SITES = 6, 4
"""Images of a client, and clients, in the picture."""

HOLDS = {
    CLIENTS: (0, (2, 2, 2, 2), "every client labels a few\nof its images"),
    SERVER: (IMAGES, (0, 0, 0, 0), "the server alone has\nlabelled images"),
    PARTIAL: (0, (IMAGES, 0, 0, 0), "some clients label all\ntheir images, others none"),
}
"""Labelled images at the server and at each client, and what that means."""

TILE, STEP, GAP = 0.22, 0.28, 1.25


def main() -> None:
    figure = plot_style.new_figure(9.6, 3.7)
    for axes, (where, (server, clients, words)) in zip(figure.subplots(1, 3), HOLDS.items(), strict=True):
        _scenario(axes, where, server, clients, words)
    plot_style.note(figure, "Filled: an image with its label. Hollow: an image without one. Arrows: weights.")
    for file in plot_style.save(figure, PICTURE):
        print(f"wrote {file}")


def _scenario(axes: Axes, where: str, server: int, clients: Sequence[int], words: str) -> None:
    middle = GAP * (SITES - 1) / 2
    _holder(axes, "server", middle, 2.6, [True] * server)
    for place, labelled in enumerate(clients):
        images = [number < labelled for number in range(IMAGES)]
        _holder(axes, f"client {place + 1}", GAP * place, 0.0, images)
        ends = {"xy": (GAP * place, 0.78), "xytext": (middle + 0.3 * (GAP * place - middle), 2.02)}
        look = {"arrowstyle": "<->", "color": MUTED, "linewidth": 0.9}
        axes.annotate("", **ends, arrowprops=look)
    axes.set_title(f"labels.where = {where}", fontsize=TEXT, color=INK, family="monospace")
    axes.text(middle, -1.0, words, ha="center", va="top", fontsize=SMALL + 1, color=INK)
    axes.set(xlim=(-0.75, GAP * (SITES - 1) + 0.75), ylim=(-1.9, 3.4), aspect="equal")
    axes.axis("off")


def _holder(axes: Axes, name: str, x: float, y: float, images: Sequence[bool]) -> None:
    """A box with its name on top and its images, three in a row, inside."""
    from matplotlib.patches import FancyBboxPatch, Rectangle

    box = FancyBboxPatch(
        (x - 0.5, y - 0.5), 1.0, 1.0, boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor="white", edgecolor=MUTED, linewidth=1.0,
    )  # fmt: skip
    axes.add_patch(box)
    axes.text(x, y + 0.3, name, ha="center", va="center", fontsize=SMALL, color=INK)
    for number, labelled in enumerate(images):
        left = x - STEP - TILE / 2 + STEP * (number % 3)
        bottom = y - 0.12 - STEP * (number // 3)
        fill = BLUE if labelled else "white"
        axes.add_patch(Rectangle((left, bottom), TILE, TILE, facecolor=fill, edgecolor=BLUE, linewidth=1.0))


if __name__ == "__main__":
    main()
