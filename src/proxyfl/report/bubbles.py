"""The partition as a matrix of bubbles: clients × classes, labelled and unlabelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from proxyfl.core.errors import RunError
from proxyfl.core.text import name_alone
from proxyfl.data.labels import Indices
from proxyfl.data.partition import Partition
from proxyfl.data.scenarios import who_has_labels
from proxyfl.report import plot_style
from proxyfl.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_CLASSES = 20
"""With more classes the numbers are left out."""

MOST_CLIENTS, MOST_CLASSES = 40, 150
"""Of more than these the first ones are drawn."""

CELL, SMALL_CELL = 0.37, 0.16
"""Side of a cell with and without numbers, in inches."""

RADIUS = 0.48
LONG_NAME = 20
FILLS = {"labelled": plot_style.ORANGE, "unlabelled": plot_style.SKY}


def partition_bubbles(
    source: Run | tuple[Partition, Any, Sequence[str]], path: str | Path, title: str = ""
) -> list[Path]:
    """Who holds what, as PNG, SVG and CSV; gives the three files.

    ``source`` is a run, or a partition with the labels of its training images and the names of the classes.
    """
    what = "images"
    if isinstance(source, Run):
        title, dataset = title or _describe(source), source.dataset()
        what = dataset.train.called
        source = source.partition, dataset.train.labels, dataset.classes
    partition, labels, classes = source
    parts = dict(zip(FILLS, partition.class_counts(labels, len(classes)), strict=True))
    server = partition.server_counts(labels, len(classes))
    if not any(counts.any() for counts in parts.values()):
        raise RunError(f"the partition holds no {what} to draw")
    who = _labels_in_words(partition, server, classes, what)
    own = bool(server.any())
    shown = {**parts, "labelled": server[None]} if own else parts
    figure = _draw(shown, classes, title or "Who holds what", what, who, own=own)
    rows: list[tuple[object, ...]] = [
        ("server", label, name, int(server[label]), 0) for label, name in enumerate(classes) if server.any()
    ]
    rows += [
        (client, label, name, *(int(counts[client, label]) for counts in parts.values()))
        for client in range(partition.clients)
        for label, name in enumerate(classes)
    ]
    return [
        *plot_style.save(figure, path),
        plot_style.save_csv(path, ("client", "class", "class_name", *parts), rows),
    ]


def _describe(run: Run) -> str:
    partition = run.config.partition
    data = name_alone(run.config.data.name)
    return (
        f"Distribution of data over clients: {data}, scheme {partition.scheme}, alpha = {partition.alpha:g}"
    )


def _labels_in_words(partition: Partition, server: Indices, classes: Sequence[str], what: str) -> list[str]:
    """Who has labels, in a line."""
    said = who_has_labels(partition.where, partition.server, partition.labelled, what)
    counts = [f"{_short_name(name)} {count:,}" for name, count in zip(classes, server.tolist(), strict=True)]
    by_class = f": {', '.join(counts)}" if server.any() and len(classes) <= MANY_CLASSES else ""
    return [f"{said[0].upper()}{said[1:]}{by_class}."] if said else []


def _draw(
    parts: Mapping[str, Indices],
    classes: Sequence[str],
    title: str,
    what: str = "images",
    who: Sequence[str] = (),
    *,
    own: bool = False,
) -> Figure:
    """A panel of each part; ``own``: that of labelled samples shows the server's."""
    numbers = len(classes) <= MANY_CLASSES
    drawn = {part: counts[:MOST_CLIENTS, :MOST_CLASSES] for part, counts in parts.items()}
    clients, size = drawn["unlabelled"].shape
    cell = CELL if numbers else SMALL_CELL
    wide, high = (clients + 2) * cell + 1.4, (size + 1) * cell + 1.0
    if numbers:
        figure = plot_style.new_figure(max(wide, 7.0), 2 * high + 1.5)
        panels = figure.subplots(2, 1)
    else:
        figure = plot_style.new_figure(max(2 * wide, 9.0), high + 1.0)
        panels = figure.subplots(1, 2)
    figure.suptitle(
        title, fontsize=plot_style.TITLE + 1, color=plot_style.INK, x=0.01, ha="left", fontweight="bold"
    )
    for axes, (part, counts) in zip(panels, parts.items(), strict=True):
        at_server = own and part == "labelled"
        _panel(axes, drawn[part], classes[:size], FILLS[part], numbers)
        heading = f"{part.capitalize()}: {counts.sum():,} {what}"
        if at_server:
            heading += " at the server"
            axes.set_xticks([])
        elif numbers:
            heading += f", {counts.sum() / len(counts):,.1f} per client on average"
        plot_style.dress(axes, title=heading, x="" if at_server else "client", y="class")
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    total = parts["unlabelled"].shape
    plot_style.note(figure, "\n".join([*who, *_caption(drawn, total[0], total[1], what)]))
    return figure


def _caption(drawn: Mapping[str, Indices], clients: int, classes: int, what: str) -> list[str]:
    """What the bubbles mean, and what is left out."""
    largest = " and ".join(f"{counts.max():,} ({part})" for part, counts in drawn.items())
    lines = [f"Area proportional to the number of {what}; the largest bubbles are {largest}."]
    if classes > MANY_CLASSES:
        lines.append(f"More than {MANY_CLASSES} classes: the numbers are in the CSV file only.")
    if clients > MOST_CLIENTS:
        lines.append(
            f"Drawn and summed: the first {MOST_CLIENTS} of {clients:,} clients; the CSV file has all."
        )
    if classes > MOST_CLASSES:
        lines.append(f"Drawn: the first {MOST_CLASSES} of {classes:,} classes; the CSV file has all.")
    return lines


def _panel(axes: Axes, counts: Indices, classes: Sequence[str], fill: str, numbers: bool) -> None:
    """Circles in the units of the axes, so that area is in proportion to the count whatever the layout."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle

    clients, size = len(counts), len(classes)
    held = [(int(k), int(c), int(counts[k, c])) for k, c in np.argwhere(counts)]
    largest = max((count for _, _, count in held), default=1)
    circles = [Circle((k, c), RADIUS * (count / largest) ** 0.5) for k, c, count in held]
    axes.add_collection(PatchCollection(circles, facecolor=fill, edgecolor="none", alpha=0.8))
    axes.set(
        xlim=(-0.6, clients - 0.4 + 1.4 * numbers), ylim=(size - 0.4, -0.6 - 0.9 * numbers), aspect="equal"
    )
    axes.set_anchor("W")
    step = 1 if numbers else max(1, -(-size // 25))
    axes.set_yticks(range(0, size, step), [_short_name(name) for name in classes[::step]])
    step = 1 if numbers else 5
    axes.set_xticks(range(0, clients, step), [str(client) for client in range(0, clients, step)])
    for line in range(clients + 1):
        axes.axvline(line - 0.5, color=plot_style.GRID, linewidth=0.5, zorder=0)
    for line in range(size + 1):
        axes.axhline(line - 0.5, color=plot_style.GRID, linewidth=0.5, zorder=0)
    if numbers:
        _numbers(axes, held, counts)


def _numbers(axes: Axes, held: list[tuple[int, int, int]], counts: Indices) -> None:
    """A count on every bubble, the sum of each client above and of each class at the right."""
    clients = len(counts)
    place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": plot_style.SMALL}
    for client, label, count in held:
        axes.text(client, label, _short(count), color=plot_style.INK, **place)
    for client, total in enumerate(counts.sum(1)):
        axes.text(client, -1, _short(int(total)), color=plot_style.MUTED, **place)
    for label, total in enumerate(counts.sum(0)):
        axes.text(clients + 0.3, label, _short(int(total)), color=plot_style.MUTED, **place)
    axes.text(clients + 0.3, -1, "sum", color=plot_style.MUTED, **place)


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


def _short_name(name: str) -> str:
    return name if len(name) <= LONG_NAME else f"{name[: LONG_NAME - 1]}…"
