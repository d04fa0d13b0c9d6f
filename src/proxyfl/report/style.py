"""One look for every picture: colours that colour-blind readers can tell apart, line styles and markers
that survive greyscale, and files that appear whole.

Pictures are drawn on matplotlib's ``Figure`` itself: no window system, no backend and no settings of the
user's own plots are touched.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.errors import ConfigError, RunError, missing_extra
from proxyfl.core.files import write_bytes

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


@dataclass(frozen=True)
class Look:
    """How a method is drawn, the same in every picture."""

    colour: str
    line: str
    marker: str
    width: float = 1.8
    size: float = 6


LOOKS = {
    "fedavg": Look(MUTED, "-", "o"),
    "fedavg-sl": Look(BLACK, "--", "^"),
    "fedprox": Look(PURPLE, ":", "v"),
    "fixmatch-lpl": Look(SKY, "--", "s"),
    "fixmatch-gpl": Look(BLUE, "-.", "D"),
    "gpl-all": Look(GREEN, "-.", "P"),
    "lpl-all": Look(ORANGE, ":", "X"),
    "proxyfl": Look(VERMILLION, "-", "*", 2.6, 11),
}
_OTHERS = (
    Look(GREEN, "-", "<"), Look(PURPLE, "--", ">"), Look(ORANGE, "-", "h"), Look(SKY, "-.", "p"),
    Look(BLACK, ":", "d"), Look(BLUE, "--", "v"), Look(GREEN, ":", "^"), Look(PURPLE, "-", "s"),
)  # fmt: skip


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method: its own where it has one, else the next of the spare ones."""
    spare = cycle(_OTHERS)
    return {method: LOOKS.get(method) or next(spare) for method in methods}


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


def save(figure: Figure, path: str | Path) -> list[Path]:
    """``path`` as PNG and as SVG, the same bits for the same picture; gives both files."""
    import matplotlib

    files = []
    for kind in ("png", "svg"):
        content = io.BytesIO()
        # The only way to keep random names and the date out of an SVG; the settings are put back at once.
        with matplotlib.rc_context({"svg.hashsalt": "proxyfl"}):
            figure.savefig(content, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
        files.append(write(_beside(path, kind), content.getvalue()))
    return files


def save_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """The data of a picture as CSV beside it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return write(_beside(path, "csv"), text.getvalue().encode())


def _beside(path: str | Path, kind: str) -> Path:
    place = Path(path)
    stem = place.stem if place.suffix in (".png", ".svg", ".csv") else place.name
    if not stem:
        raise ConfigError(f"'{path}' does not name a picture; give a file such as pictures/accuracy")
    return place.with_name(f"{stem}.{kind}")


def write(path: Path, content: bytes) -> Path:
    """A file of a report: whole or not at all, its folder made where there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    except OSError as error:
        raise RunError(
            f"writing {path} failed: {error.strerror or error}; make room or choose another folder"
        ) from error
    return path
