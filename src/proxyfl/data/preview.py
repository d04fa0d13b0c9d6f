"""A picture of a data set: a few samples, and beside each its weak and strong views; of vectors, bars."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from proxyfl.core.errors import ConfigError
from proxyfl.data.augment import strong, weak
from proxyfl.data.dataset import Dataset

WEAK, STRONG = 3, 5
UNLABELLED = 2
TILE = 72
GAP = 6
GROUP_GAP = 22
MARGIN = 20
HEADER = 34
INK, MUTED, PAPER = (32, 33, 36), (110, 114, 120), (255, 255, 255)
BAR, ROW, BLUE, PALE = 360, 26, (46, 96, 160), (200, 206, 214)
MOST_BARS = 60


def choose(labels: Tensor, classes: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` labelled samples, from as many classes as possible, ordered by class."""
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order] >= 0]
    shuffled = labels[order]
    places = torch.empty(len(order), dtype=torch.int64)
    for label in range(classes):
        members = (shuffled == label).nonzero().flatten()
        places[members] = torch.arange(len(members))
    first = order[places.argsort(stable=True)][:count]
    return first[labels[first].argsort(stable=True)]


def contact_sheet(dataset: Dataset, generator: torch.Generator, *, count: int = 8) -> Image.Image:
    """Rows are training samples, by class and at last two unlabelled ones; columns are the original, the weak
    views and the strong views.
    """
    if count < 1:
        raise ConfigError(f"--count {count} is too small; use 1 or more")
    chosen = choose(dataset.train.labels, len(dataset.classes), count, generator)
    nameless = (dataset.train.labels < 0).nonzero().flatten()
    if len(nameless):
        nameless = nameless[torch.randperm(len(nameless), generator=generator)[:UNLABELLED]]
    samples = dataset.train.take(torch.cat([chosen, nameless]))
    columns = [samples.images]
    columns += [weak(samples.images, generator, flip=dataset.flip) for _ in range(WEAK)]
    columns += [strong(samples.images, generator, flip=dataset.flip) for _ in range(STRONG)]
    names = [dataset.classes[label] if label >= 0 else "unlabelled" for label in samples.labels.tolist()]
    return _draw(columns, names)


def above(first: Image.Image, second: Image.Image) -> Image.Image:
    """One picture above another."""
    both = Image.new("RGB", (max(first.width, second.width), first.height + second.height), PAPER)
    both.paste(first)
    both.paste(second, (0, first.height))
    return both


def class_bars(dataset: Dataset) -> Image.Image:
    """How many labelled training samples each class has, and how many have no label."""
    labels = dataset.train.labels
    counts = torch.bincount(labels[labels >= 0], minlength=len(dataset.classes)).tolist()[:MOST_BARS]
    rows = [(name, count, BLUE) for name, count in zip(dataset.classes, counts, strict=False)]
    rows += [("unlabelled", int((labels < 0).sum()), PALE)] if not dataset.knows_all else []
    text = _font(15)
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name, _, _ in rows]
    left = MARGIN + max(int(text.getlength(name)) for name in names) + 14
    longest = max(1, *(count for _, count, _ in rows))
    picture = Image.new("RGB", (left + BAR + 90, 2 * MARGIN + ROW * len(rows)), PAPER)
    pen = ImageDraw.Draw(picture)
    for row, (name, (_, count, colour)) in enumerate(zip(names, rows, strict=True)):
        top, end = MARGIN + ROW * row, left + round(BAR * count / longest)
        pen.text((MARGIN, top + ROW // 2), name, fill=INK, font=text, anchor="lm")
        pen.rectangle((left, top + 4, max(left + 1, end), top + ROW - 4), fill=colour)
        pen.text((end + 8, top + ROW // 2), f"{count:,}", fill=MUTED, font=text, anchor="lm")
    return picture


def _draw(columns: list[Tensor], names: list[str]) -> Image.Image:
    size = columns[0].shape[-1]
    tile = size * max(TILE // size, 1)  # whole multiples keep the pixels square and even
    text, small = _font(15), _font(13)
    names = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    label_width = max(int(text.getlength(name)) for name in names) + 14
    lefts = _lefts(MARGIN + label_width, tile)
    width = lefts[-1] + tile + MARGIN
    height = MARGIN + HEADER + len(names) * (tile + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    for title, first in (("original", 0), ("weak", 1), ("strong", 1 + WEAK)):
        pen.text((lefts[first], MARGIN), title, fill=MUTED, font=small)
    for row, name in enumerate(names):
        top = MARGIN + HEADER + row * (tile + GAP)
        pen.text((MARGIN, top + tile // 2), name, fill=INK, font=text, anchor="lm")
        for left, images in zip(lefts, columns, strict=True):
            sheet.paste(_tile(images[row], tile), (left, top))
    return sheet


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """DejaVu Sans, which knows the letters of most languages, where it or matplotlib is installed; Pillow's
    own font draws boxes for them.
    """
    package = importlib.util.find_spec("matplotlib")
    beside = Path(package.origin or "").parent / "mpl-data/fonts/ttf" if package else Path()
    for place in ("DejaVuSans.ttf", str(beside / "DejaVuSans.ttf")):
        with suppress(OSError):
            return ImageFont.truetype(place, size - 2)  # its letters are wider
    return ImageFont.load_default(size)


def _lefts(start: int, tile: int) -> list[int]:
    """The left edge of each column; a wider gap parts original, weak and strong."""
    lefts = [start]
    for column in range(1, 1 + WEAK + STRONG):
        gap = GROUP_GAP if column in (1, 1 + WEAK) else GAP
        lefts.append(lefts[-1] + tile + gap)
    return lefts


def _tile(image: Tensor, tile: int) -> Image.Image:
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(pixels).resize((tile, tile), Image.Resampling.NEAREST)
