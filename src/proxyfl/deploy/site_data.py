"""A site's own images: labelled and unlabelled parts found, counted and checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.files import write_tensors
from proxyfl.core.rng import SERVER, rng
from proxyfl.data.dataset import Split
from proxyfl.data.stream import ClientData
from proxyfl.deploy.site_forms import (
    LABELS_FILE,
    NO_LABEL,
    find_form,
    list_by_csv,
    list_class_folders,
    read_npz,
)

CACHE_FORMAT = 2
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counts:
    """Numbers of images; the lists have one entry per class."""

    labelled: tuple[int, ...]
    held_out: tuple[int, ...]
    unlabelled: int

    @property
    def total(self) -> int:
        return sum(self.labelled) + sum(self.held_out) + self.unlabelled


@dataclass(frozen=True)
class SiteData:
    """All images of a site as uint8 (N, channels, size, size), their labels (-1: none), and who is what.

    ``labelled`` and ``unlabelled`` are what is trained on, ``held`` is kept back: indices, in reading order.
    """

    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    labelled: Tensor
    unlabelled: Tensor
    held: Tensor
    form: str
    ignored: int = 0
    depth: str = ""
    """What there is to tell about images of 16 bits."""

    @property
    def data(self) -> ClientData:
        """What the site trains on."""
        return ClientData(self.images, self.labelled, self.labels[self.labelled], self.unlabelled)

    @property
    def held_out(self) -> Split:
        """What the site measures accuracy on."""
        return Split(self.images[self.held], self.labels[self.held])

    @property
    def counts(self) -> Counts:
        labelled, held = (
            tuple(torch.bincount(self.labels[index], minlength=len(self.classes)).tolist())
            for index in (self.labelled, self.held)
        )
        return Counts(labelled, held, len(self.unlabelled))

    @property
    def notes(self) -> list[str]:
        """What the site's people should know before they take part."""
        notes = [self.depth] if self.depth else []
        if self.ignored:
            notes.append(f"{self.ignored:,} entries ignored: no images, or folders below class folders")
        if not len(self.labelled):
            notes.append("no labelled image to train on: methods that need labels pass this site over")
        if not len(self.unlabelled):
            notes.append("no unlabelled images")
        missing = [
            name for name, number in zip(self.classes, self.counts.labelled, strict=True) if not number
        ]
        if missing and len(missing) < len(self.classes):
            notes.append(f"no labelled image of: {', '.join(missing)}")
        return notes


def open_site(
    path: str | Path,
    classes: Sequence[str],
    channels: int,
    image_size: int,
    holdout: float = 0.0,
    seed: int = 1,
    cache: Path | None = None,
) -> SiteData:
    """Read a site's data: class folders, a CSV of labels beside images, or an npz file.

    ``holdout`` is the share of labelled images kept back, drawn by class, the same for the same ``seed``.
    ``cache`` is a folder for the decoded images: the next process then reads them in a moment.
    """
    if not 0 <= holdout < 1:
        raise ConfigError(f"holdout = {holdout} must be a share from 0 to below 1")
    place = Path(path).expanduser()
    split, form, ignored, depth = _read(place, tuple(classes), channels, image_size, cache)
    if not len(split):
        raise DataError(f"there are no images in {place}")
    held = held_out(split.labels, len(classes), holdout, seed)
    labelled = (split.labels != NO_LABEL) & ~held
    return SiteData(
        tuple(classes),
        split.images,
        split.labels,
        labelled.nonzero()[:, 0],
        (split.labels == NO_LABEL).nonzero()[:, 0],
        held.nonzero()[:, 0],
        form,
        ignored,
        depth,
    )


def open_test(
    path: str | Path, classes: Sequence[str], channels: int, image_size: int, *, by_name: bool = False
) -> Split:
    """Test images in any form that a site may use. Every one needs its label. ``by_name``, an npz file may
    number its classes in an order of its own.
    """
    place = Path(path).expanduser()
    if by_name and find_form(place) == "npz":
        split, depth = read_npz(place, classes, channels, image_size, by_name=True), ""
    else:
        split, _, _, depth = _read(place, tuple(classes), channels, image_size, None)
    without = int((split.labels == NO_LABEL).sum())
    if not len(split):
        raise DataError(f"there are no images in {place}")
    if without:
        raise DataError(f"{place}: {without:,} of {len(split):,} test images have no label; take them out")
    if depth:
        log.warning("%s: %s", place, depth)
    return split


def write_npz(file: Path, images: Tensor, labels: Tensor, classes: Sequence[str]) -> None:
    """Images (N, channels, H, W) and labels (-1: none) in the form that :func:`open_site` reads."""
    arrays = images.numpy()
    arrays = arrays[:, 0] if arrays.shape[1] == 1 else arrays.transpose(0, 2, 3, 1)
    np.savez(file, images=arrays, labels=labels.numpy(), classes=np.array(classes, dtype=np.str_))


def client_arrays(data: ClientData) -> tuple[Tensor, Tensor]:
    """A simulated client's images and labels in the order that keeps its batches the same at a real site."""
    index = torch.cat([data.labelled, data.unlabelled])
    without = torch.full_like(data.unlabelled, NO_LABEL)
    return data.images[index], torch.cat([data.labels, without])


def held_out(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """True for the labelled images to keep back: ``share`` of them, spread over the classes in proportion.

    Every class keeps at least one image to train on; which ones go is a pure function of the seed.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    known = labels[labels != NO_LABEL]
    counts = torch.bincount(known, minlength=classes).tolist() if len(known) else [0] * classes
    for label, number in enumerate(_by_largest_remainder(counts, share)):
        members = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(members), generator=rng(seed, 0, SERVER, f"holdout/{label}"))
        mask[members[order[:number]]] = True
    return mask


def _by_largest_remainder(counts: Sequence[int], share: float) -> list[int]:
    exact = [share * count for count in counts]
    parts = [min(math.floor(value), max(0, count - 1)) for value, count in zip(exact, counts, strict=True)]
    wanted = max(1, round(sum(exact))) if share else 0
    order = sorted(range(len(counts)), key=lambda place: parts[place] - exact[place])
    for place in order:
        if sum(parts) < wanted and parts[place] + 1 < counts[place]:
            parts[place] += 1
    return parts


def _read(
    place: Path, classes: tuple[str, ...], channels: int, size: int, cache: Path | None
) -> tuple[Split, str, int, str]:
    """The images in reading order, the form they were found in, how many entries were passed over, and what
    there is to tell about images of 16 bits.
    """
    form = find_form(place)
    if form == "npz":
        return read_npz(place, classes, channels, size), form, 0, ""
    if form == "csv":
        listing = list_by_csv(place / LABELS_FILE if place.is_dir() else place, classes)
    else:
        listing = list_class_folders(place, classes)
    labels = torch.tensor(listing.labels, dtype=torch.int64)
    kept = None if cache is None else _kept(cache, listing.files, channels, size)
    if kept is not None and (found := _cached(kept, (len(labels), channels, size, size))) is not None:
        return Split(found[0], labels), form, listing.ignored, found[1]
    split, depth = listing.read(channels, size)
    if kept is not None:
        _write_cache(kept, split.images, depth)
    return split, form, listing.ignored, depth


def _kept(cache: Path, files: Sequence[Path], channels: int, size: int) -> Path:
    """Where the decoded images of these very files belong."""
    states = [(str(file), state.st_size, state.st_mtime_ns) for file in files for state in (file.stat(),)]
    key = hashlib.sha256(json.dumps([CACHE_FORMAT, channels, size, states]).encode()).hexdigest()
    return cache / f"images-{key[:32]}.safetensors"


def _cached(file: Path, shape: tuple[int, ...]) -> tuple[Tensor, str] | None:
    """The decoded images and what there was to tell about them, where they are there."""
    try:
        with safe_open(file, framework="pt") as content:
            images, depth = content.get_tensor("images"), (content.metadata() or {}).get("depth", "")
    except (OSError, SafetensorError):
        return None
    return (images, depth) if (images.dtype, *images.shape) == (torch.uint8, *shape) else None


def _write_cache(file: Path, images: Tensor, depth: str) -> None:
    """Keep the decoded images, and those of no earlier state of the data."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob("images-*.safetensors"):
        old.unlink(missing_ok=True)
    write_tensors(file, {"images": images}, {"depth": depth})
