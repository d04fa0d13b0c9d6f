"""Bars side by side, distinguished by colour and hatching, with their values written on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxyfl.paper.figures.groups import Group
from proxyfl.report import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILLS = (
    plot_style.SKY,
    plot_style.ORANGE,
    plot_style.VERMILLION,
    plot_style.GREEN,
    plot_style.PURPLE,
    plot_style.BLUE,
)
HATCHES = ("", "///", "...", "\\\\\\", "xx", "--")
"""One for each fill, so that bars differ in greyscale."""

TAKEN = 0.82
"""Share of the distance between two groups that their bars take."""

HEADROOM = 0.12


@dataclass(frozen=True)
class Bar:
    """Where a bar stands, and its values."""

    series: str
    x: float
    group: Group


def draw_bars(
    axes: Axes,
    positions: Sequence[float],
    series: Mapping[str, Mapping[float, Group]],
    write: Callable[[float], str],
) -> float:
    """Bars of every series at every position, which need not all be there; gives where the axis begins."""
    names, width = list(series), TAKEN / len(series)
    groups = [group for each in series.values() for group in each.values()]
    top = max(group.spread.mean + group.error for group in groups)
    floor = _floor(groups)
    for place, name in enumerate(names):
        offset = (place - (len(names) - 1) / 2) * width
        bars = [Bar(name, positions.index(at) + offset, group) for at, group in series[name].items()]
        axes.bar(
            [bar.x for bar in bars], [bar.group.spread.mean for bar in bars], width * 0.94,
            color=FILLS[place % len(FILLS)], hatch=HATCHES[place % len(HATCHES)],
            edgecolor=plot_style.INK, linewidth=0.7, label=name, zorder=2,
        )  # fmt: skip
        for bar in bars:
            mean, error = bar.group.spread.mean, bar.group.error
            if error:
                axes.errorbar(bar.x, mean, error, color=plot_style.INK, capsize=3, linewidth=1.2, zorder=3)
            above = mean + error + 0.015 * (top - floor)
            axes.text(
                bar.x,
                above,
                write(mean),
                ha="center",
                va="bottom",
                fontsize=plot_style.SMALL,
                color=plot_style.INK,
            )
    axes.set_xticks(range(len(positions)), [f"{at:g}" for at in positions])
    axes.set_xlim(-0.6, len(positions) - 0.4)
    axes.set_ylim(floor, floor + (top - floor) * (1 + HEADROOM))
    return floor


def _floor(groups: Sequence[Group]) -> float:
    """Where the axis begins: 0, or a multiple of ten where values lie close together far above it."""
    low = min(group.spread.mean - group.error for group in groups)
    high = max(group.spread.mean + group.error for group in groups)
    if high > 100 or low < 40 or high - low > 0.25 * high:
        return 0.0
    return 10 * math.floor((low - 0.5 * (high - low)) / 10)
