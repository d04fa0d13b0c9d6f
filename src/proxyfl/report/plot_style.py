"""One look for every picture: colours that colour-blind readers can tell apart, line styles and markers
that survive greyscale, and files that appear whole.

Pictures are drawn on matplotlib's ``Figure`` itself: no window system, no backend and no settings of the
user's own plots are touched.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.errors import ConfigError, missing_extra
from proxyfl.core.files import write_output
from proxyfl.methods import registry
from proxyfl.results.formats import csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
TITLE, TEXT, SMALL = 13, 11, 9
"""Font sizes in points."""

INK, MUTED, GRID = "#222222", "#666666", "#DDDDDD"
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
"""The palette of Okabe and Ito without its yellow, which is too pale for a line on white."""

Line = str | tuple[float, tuple[float, ...]]
"""A line style by name, or an offset with the lengths of dashes and gaps in line widths."""

SOLID, DASHED, DOTTED, DASH_DOT = "-", "--", ":", "-."
LONG_DASH: Line = (4, (8.0, 2.2))  # so that no marker hides the gap in a legend
DASH_DOT_DOT: Line = (0, (5.0, 1.4, 1.0, 1.4, 1.0, 1.4))


@dataclass(frozen=True)
class Look:
    """How a method is drawn, the same in every picture."""

    colour: str
    line: Line
    marker: str
    width: float = 1.8
    size: float = 6


# What the words of a method's ``Shown`` mean here.
_COLOUR = {
    "black": BLACK, "sky": SKY, "blue": BLUE, "green": GREEN, "orange": ORANGE, "purple": PURPLE,
    "vermillion": VERMILLION,
}  # fmt: skip
_LINE: dict[str, Line] = {
    "solid": SOLID, "dashed": DASHED, "dotted": DOTTED, "dash-dot": DASH_DOT, "dash-dot-dot": DASH_DOT_DOT,
    "long-dash": LONG_DASH,
}  # fmt: skip
_LINES: tuple[Line, ...] = (LONG_DASH, DASH_DOT_DOT, DASH_DOT, DASHED, DOTTED, SOLID)
COLOURS = (GREEN, PURPLE, ORANGE, BLUE, BLACK, SKY, VERMILLION)
_MARKERS = "vsPhdX^oDp<>"


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method: its own where it has one, else a spare one that is unlike all others.

    ``parent+addon`` keeps the parent's colour as long as a line style is left in it.
    """
    own, found = own_looks(), dict[str, Look]()
    for method in methods:
        found[method] = own.get(method) or _spare(method, own, found.values())
    return found


def own_looks() -> dict[str, Look]:
    """The looks that registered methods ask for; one that another has already is not given twice."""
    found: dict[str, Look] = {}
    for recipe in registry.recipes():
        shown = registry.shown(recipe.name)
        if shown.colour is None:
            continue
        bold = {"width": 2.6, "size": 11.0} if shown.bold else {}
        look = Look(_COLOUR[shown.colour], _LINE[shown.line], shown.marker, **bold)
        if look not in found.values():
            found[recipe.name] = look
    return found


def _spare(method: str, own: Mapping[str, Look], others: Iterable[Look]) -> Look:
    parent = max((name for name in own if method.startswith(f"{name}+")), key=len, default="")
    spare = [Look(colour, line, marker) for line, marker, colour in product(_LINES, _MARKERS, COLOURS)]
    if parent:
        spare.sort(key=lambda look: look.colour != own[parent].colour)
    taken = [*own.values(), *others]
    return min(spare, key=lambda look: max((_likeness(look, other) for other in taken), default=0))


def _likeness(one: Look, other: Look) -> int:
    """2: the same line with the same markers; 1: alike in colour or in greyscale; 0: easy to tell apart."""
    if one.line != other.line:
        return 0
    return (one.colour == other.colour) + (one.marker == other.marker)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that makes room for its labels by itself."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise missing_extra("matplotlib", "plot") from error
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    return Figure(figsize=(width, height), layout=layout, facecolor="white")


def dress(axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: str | None = None) -> None:
    """Title, labels, ticks and frame. ``grid`` names the axes that get lines: ``x``, ``y`` or ``both``."""
    axes.set_title(title, fontsize=TITLE, color=INK, loc="left", pad=10)
    axes.set_xlabel(x, fontsize=TEXT, color=INK)
    axes.set_ylabel(y, fontsize=TEXT, color=INK)
    axes.tick_params(labelsize=SMALL + 1, colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(visible=True, axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]


def note(figure: Figure, text: str) -> None:
    """A line of explanation under the picture."""
    figure.supxlabel(text, fontsize=SMALL, color=MUTED, x=0.01, ha="left")


def repeatable() -> AbstractContextManager[None]:
    """The only way to keep random names out of an SVG; the settings are put back at once."""
    import matplotlib

    context: AbstractContextManager[None] = matplotlib.rc_context({"svg.hashsalt": "proxyfl"})
    return context


def save(figure: Figure, path: str | Path) -> list[Path]:
    """``path`` as PNG and as SVG, the same bits for the same picture; gives both files."""
    files = []
    for kind in ("png", "svg"):
        content = io.BytesIO()
        with repeatable():
            figure.savefig(content, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
        files.append(write_output(_beside(path, kind), content.getvalue()))
    return files


def save_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """The data of a picture as CSV beside it."""
    return write_output(_beside(path, "csv"), csv_text(header, rows).encode())


def _beside(path: str | Path, kind: str) -> Path:
    place = Path(path)
    stem = place.stem if place.suffix in (".png", ".svg", ".csv") else place.name
    if not stem:
        raise ConfigError(f"'{path}' does not name a picture; give a file such as pictures/accuracy")
    return place.with_name(f"{stem}.{kind}")
