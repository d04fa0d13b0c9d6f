"""What ``proxyfl data check`` tells about people's own data, and the contact sheet."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.cli.common import command
from proxyfl.cli.present import LEVELS
from proxyfl.core.dealing import CLIENTS
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.trees import Tree, merge

if TYPE_CHECKING:
    from rich.console import Console

    from proxyfl.data.dataset import Dataset
    from proxyfl.data.look import Look

BAR = 30
"""Characters of the longest bar."""
MOST_CLASSES = 40
BINS = 12
"""Bars of the sizes."""


def explain(
    name: str, root: Path, keys: str, output: Path | None, console: Console, asked: Tree | None = None
) -> None:
    """What was found, what is doubtful about it, and how to go on. Every image is read. ``asked`` are
    settings by which it is dealt to clients.
    """
    from proxyfl.data.look import look
    from proxyfl.runs import own
    from proxyfl.runs.experiment import load_config
    from proxyfl.runs.simulation import doubts, labels_in_words, prepare

    if output is not None:
        require_png(output)
    found = look(name, root, keys)
    try:
        config = load_config(name, merge(asked or {}, {"data": {"keys": keys}} if keys else {}), root=root)
        simulation = prepare(config, root)
        found = found.counted_in(simulation.dataset)
    finally:  # where it cannot be trained on, too
        for line in described(found):
            console.print(line, markup=False)
    if who := labels_in_words(simulation):
        console.print(f"labels.where = {config.labels.where}: {who}", markup=False)
    for line in doubts(simulation.dataset, simulation.partition):
        console.print(f"warning: {line}", markup=False)
    if output is not None:
        count = min(len(simulation.dataset.classes), MOST_CLASSES) * 2
        draw_sheet(simulation.dataset, output, console, count=count, seed=0, bars=True)
    console.print(own.summary(config), markup=False)
    more = ["--set", f"data.keys={keys}"] if keys else []
    more += ["--set", "model.name=frozen:hf:FOLDER"] if found.words else []
    more += ["--scenario", config.labels.where] if config.labels.where != CLIENTS else []
    console.print(f"continue with: {command('run', name, *more)}", markup=False)


def described(found: Look) -> list[str]:
    """The data in words, and a bar for every class."""
    share = f"{100 * found.unlabelled / found.train:.0f} %" if found.train else "none"
    lines = [
        f"{found.train:,} training {found.called}: {found.labelled:,} labelled in {len(found.counts)} "
        f"{'class' if len(found.counts) == 1 else 'classes'}, {found.unlabelled:,} unlabelled ({share})"
    ]
    longest = max(found.counts.values(), default=1) or 1
    width = max((min(len(label), 24) for label in found.counts), default=0)
    for label, count in list(found.counts.items())[:MOST_CLASSES]:
        bar = "█" * max(round(BAR * count / longest), 1 if count else 0)
        lines.append(f"  {label[:24]:{width}} {count:8,} {bar}")
    if len(found.counts) > MOST_CLASSES:
        lines.append(f"  and {len(found.counts) - MOST_CLASSES:,} more classes")
    kept = f", {found.validation:,} for validation" if found.validation else ""
    lines.append(f"{found.test:,} test {found.called}{kept}")
    if found.features:
        lines += _features(found)
    if found.words:
        middle = int(statistics.median(found.words))
        spread = f"{min(found.words):,} to {max(found.words):,}, median {middle:,}"
        lines.append(f"words of a text (column '{found.names[0]}'): {spread}")
    if found.sides:
        low, high = min(found.sides), max(found.sides)
        spread = f"{low}" if low == high else f"{low} to {high}, median {found.side}  {_shape(found.sides)}"
        lines.append(f"shorter side in pixels: {spread}")
    if found.clients:
        lines.append(f"{len(found.clients)} clients: {', '.join(found.clients[:MOST_CLASSES])}")
    return lines


def _shape(values: Sequence[int]) -> str:
    """How values are spread from the lowest to the highest, as a row of bars."""
    low, wide = min(values), max(values) - min(values) + 1
    counts = Counter(BINS * (value - low) // wide for value in values)
    return "".join(LEVELS[-(-8 * counts[place] // max(counts.values()))] for place in range(BINS))


def _features(found: Look) -> list[str]:
    shown = ", ".join(found.names[:MOST_CLASSES]) + (", …" if len(found.names) > MOST_CLASSES else "")
    lines = [f"{found.features:,} features{f': {shown}' if shown else ''}"]
    if found.constant:
        named = ", ".join(found.constant[:MOST_CLASSES])
        lines.append(f"{len(found.constant):,} of them are constant and carry no information: {named}")
    return lines


def require_png(output: Path) -> None:
    if output.suffix.lower() != ".png":
        raise ConfigError(f"--output {output} must end in .png")


def draw_sheet(
    dataset: Dataset, output: Path, console: Console, *, count: int, seed: int, bars: bool = False
) -> None:
    """Write samples with weak and strong views beside them to a PNG file, below ``bars`` by class; of samples
    that are no images, the bars alone.
    """
    from proxyfl.core.rng import SERVER, rng
    from proxyfl.data.preview import above, class_bars, contact_sheet

    if dataset.train.called != "images":
        what = dataset.train.called
        console.print(f"{what} cannot be drawn, so bars show the number of each class")
        sheet = class_bars(dataset)
    else:
        sheet = contact_sheet(dataset, rng(seed, 0, SERVER, "preview"), count=count)
        sheet = above(class_bars(dataset), sheet) if bars else sheet
    try:
        sheet.save(output)
    except OSError as error:
        raise DataError(f"{output} cannot be written ({error.strerror or error})") from None
    console.print(f"{output}: {sheet.width}×{sheet.height} pixels", markup=False)
