"""Proxies on a map: the classifier rows of clients, their averages and the tuned ones, by t-SNE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxyfl.core.errors import RunError, missing_extra
from proxyfl.core.state import Tensors
from proxyfl.report import plot_style
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_CLASSES = 20
"""Up to so many classes are numbered on every mark and named beside the map; of more only averages are
numbered."""

SEED = 0
PERPLEXITY = 30.0
"""Of the embedding; less where there are not three times as many proxies."""

DISTINCT = (
    *(
        plot_style.ORANGE,
        plot_style.SKY,
        plot_style.GREEN,
        plot_style.BLUE,
        plot_style.VERMILLION,
        plot_style.PURPLE,
    ),
    *("#F0E442", "#999999", "#000000", "#882255"),
)
"""Colours of up to ten classes, and in turn of so many that no colours would tell them apart."""

CLIENT, AVERAGE, TUNED = "client", "average", "tuned"
MARKS = {CLIENT: ("o", 95.0), AVERAGE: ("*", 380.0), TUNED: ("s", 85.0)}
"""Marker and its area in points²."""

SIGN = "+"
"""The marker of averages where there are many classes."""

SAID = {CLIENT: "of a client", AVERAGE: "average of clients", TUNED: "tuned by the server"}


@dataclass(frozen=True)
class Proxies:
    """Rows of classifiers: of which kind, whose (none: the server's) and for which class."""

    rows: NDArray[np.float32]
    kinds: Sequence[str]
    clients: Sequence[int | None]
    labels: NDArray[np.int64]


def proxy_map(
    run: Run, path: str | Path, round: int | None = None, tuned: bool = False, title: str = ""
) -> tuple[Path, ...]:
    """The proxies of one round in one joint embedding, as PNG, SVG and CSV; gives the three files.

    ``round`` is one with a snapshot, the first where none is given. ``tuned`` adds what proxy tuning made of
    the averages.
    """
    chosen = 1 if round is None else round
    proxies = _proxies(run.snapshot(chosen), tuned, run, chosen)
    places = embed(proxies.rows)
    names = run.model().card.classes
    config = run.config
    title = title or f"Class proxies: {config.method.name} on {config.data.name}, round {chosen}"
    rows = [
        (kind, "" if client is None else client, label, names[label], x, y)
        for kind, client, label, (x, y) in zip(
            proxies.kinds, proxies.clients, proxies.labels.tolist(), places.tolist(), strict=True
        )
    ]
    return (
        *plot_style.save(_draw(proxies, places, names, title), path),
        plot_style.save_csv(path, ("kind", "client", "class", "class_name", "x", "y"), rows),
    )


def embed(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Rows (n, d) as places on a plane (n, 2), neighbours near each other; the same for the same rows."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise missing_extra("scikit-learn", "data") from error
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    embedding = TSNE(2, perplexity=perplexity, init="pca", method="exact", random_state=SEED)
    return np.asarray(embedding.fit_transform(rows), dtype=np.float64)


def _proxies(snapshot: Tensors, tuned: bool, run: Run, round: int) -> Proxies:
    if "proxies/clients" not in snapshot:
        raise RunError(
            f"{run.path} has no classifier rows of round {round}: no client sent a layer named classifier"
        )
    if tuned and "proxies/tuned" not in snapshot:
        raise RunError(f"{run.path} has no tuned proxies; draw a run of proxyfl or +gpt, or leave them out")
    clients, classes, width = snapshot["proxies/clients"].shape
    parts = [snapshot["proxies/clients"].reshape(-1, width), snapshot["proxies/average"]]
    parts += [snapshot["proxies/tuned"]] if tuned else []
    ids: list[int] = snapshot["proxies/client_ids"].tolist()
    server = [AVERAGE, TUNED] if tuned else [AVERAGE]
    return Proxies(
        np.concatenate([part.float().numpy() for part in parts]),
        [CLIENT] * (clients * classes) + [kind for kind in server for _ in range(classes)],
        [client for client in ids for _ in range(classes)] + [None] * (len(server) * classes),
        np.tile(np.arange(classes), clients + len(server)),
    )


def _colours(classes: int) -> list[str]:
    if len(DISTINCT) < classes <= FEW_CLASSES:
        from matplotlib import colormaps
        from matplotlib.colors import to_hex

        return [to_hex(colormaps["viridis"](place)) for place in np.linspace(0, 0.97, classes)]
    return [DISTINCT[label % len(DISTINCT)] for label in range(classes)]


def _draw(proxies: Proxies, places: NDArray[np.float64], names: Sequence[str], title: str) -> Figure:
    figure = plot_style.new_figure(8.6, 6.4)
    axes = figure.add_subplot()
    colours, few = _colours(len(names)), len(names) <= FEW_CLASSES
    kinds = np.array(proxies.kinds)
    if TUNED in proxies.kinds:
        for start, end in zip(places[kinds == AVERAGE], places[kinds == TUNED], strict=True):
            axes.plot(*zip(start, end, strict=True), color=plot_style.MUTED, linewidth=1.0, zorder=3)
    for depth, kind in enumerate(dict.fromkeys(proxies.kinds), 2):
        mine = kinds == kind
        labels = proxies.labels[mine]
        if few:
            _marks(axes, kind, places[mine], [colours[label] for label in labels], depth)
            _number(axes, places[mine], labels, colours, 2 * depth + 1)
        else:
            _small_marks(axes, kind, places[mine], labels, colours, depth)
    plot_style.dress(
        axes, title=title, x="t-SNE, first dimension (no unit)", y="t-SNE, second dimension (no unit)"
    )
    _legend(figure, proxies.kinds, names, dict(enumerate(colours)), few)
    clients = len({client for client in proxies.clients if client is not None})
    note = f"Rows of the classifiers of {clients} clients in one embedding of {len(places)} points."
    if not few:
        note += "\nNumbers: classes, at their average; the CSV file names them."
        note += f" {len(DISTINCT)} colours serve all {len(names)} classes."
    plot_style.note(figure, note)
    return figure


def _marks(axes: Axes, kind: str, places: NDArray[np.float64], colours: Sequence[str], depth: int) -> None:
    (marker, area), (x, y) = MARKS[kind], places.T
    server = kind != CLIENT
    axes.scatter(
        x, y, s=area, marker=marker, zorder=2 * depth, c=colours,
        edgecolors=plot_style.INK if server else "white", linewidths=1.1 if server else 0.5,
    )  # fmt: skip


def _small_marks(
    axes: Axes,
    kind: str,
    places: NDArray[np.float64],
    labels: NDArray[np.int64],
    colours: Sequence[str],
    depth: int,
) -> None:
    """Marks of many classes, which hide none under them: points, hollow squares, averages with numbers."""
    chosen, (x, y) = [colours[label] for label in labels], places.T
    if kind == CLIENT:
        axes.scatter(x, y, s=16, marker="o", zorder=2 * depth, c=chosen, linewidths=0)
    elif kind == TUNED:
        axes.scatter(x, y, s=60, marker="s", zorder=2 * depth, facecolors="none", edgecolors=chosen)
    else:
        axes.scatter(x, y, s=30, marker=SIGN, zorder=2 * depth, c=plot_style.INK, linewidths=0.9)
        for place, label in zip(places, labels.tolist(), strict=True):
            axes.annotate(
                str(label),
                place,
                (4.5, 3),
                textcoords="offset points",
                fontsize=7,
                color=plot_style.INK,
                zorder=9,
            )


def _number(
    axes: Axes, places: NDArray[np.float64], labels: NDArray[np.int64], colours: Sequence[str], depth: int
) -> None:
    """The number of the class on every mark, for eyes and printers that do not tell colours apart."""
    for (x, y), label in zip(places, labels.tolist(), strict=True):
        axes.text(
            x, y, str(label), ha="center", va="center", fontsize=6.5, color=_on(colours[label]), zorder=depth
        )


def _on(colour: str) -> str:
    """Black or white, whichever is read better on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4 else "#FFFFFF"


def _legend(
    figure: Figure, kinds: Sequence[str], names: Sequence[str], colours: Mapping[int, str], few: bool
) -> None:
    from matplotlib.lines import Line2D

    def mark(marker: str, size: float, fill: str, text: str, edge: str = plot_style.INK) -> Line2D:
        return Line2D(
            [], [], linestyle="", marker=marker, markersize=size, markerfacecolor=fill,
            markeredgecolor=edge, label=text,
        )  # fmt: skip

    handles = [
        mark(SIGN, 7, plot_style.INK, SAID[kind])
        if kind == AVERAGE and not few
        else mark(MARKS[kind][0], MARKS[kind][1] ** 0.5 * (0.8 if few else 0.6), "white", SAID[kind])
        for kind in dict.fromkeys(kinds)
    ]
    if few:
        handles += [mark("", 0, "white", ""), mark("", 0, "white", "of class")]
        handles += [
            mark("o", 9, colours[k], f"{k}" if name == str(k) else f"{k}  {name}", "white")
            for k, name in enumerate(names)
        ]
    figure.legend(
        handles=handles, loc="outside right upper", fontsize=plot_style.TEXT, frameon=False,
        title="proxy", title_fontsize=plot_style.TEXT, alignment="left", labelspacing=0.6,
    )  # fmt: skip
