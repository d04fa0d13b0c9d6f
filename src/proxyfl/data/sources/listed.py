"""What the sources of image files share: from a listing to a data set.

Images without a label train, and are in no test or validation split. Without test images, a fixed fifth of
each class is held out. Images of any size are squeezed to squares; they become RGB, or grey when all of them
are grey. Sixteen-bit images are scaled to eight bits by the largest grey level of all of them. Damaged files
are left out and named in one line.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.text import in_words, listed
from proxyfl.data.files import memory_limit
from proxyfl.data.images import decode_all, survey
from proxyfl.data.reader.listing import MINUS_ONE, NO_LABEL, NONE_IN_ARRAYS, Entry, Listing, in_order
from proxyfl.data.sources.base import Array, Found, Source, hold_out

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

DEFAULT_SIZE = 32
TEST_SHARE = 5


@dataclass(frozen=True)
class Dealt:
    """The entries of each split, the classes, and notes on the choice."""

    train: tuple[Entry, ...]
    val: tuple[Entry, ...]
    test: tuple[Entry, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.train, *self.val, *self.test)


@dataclass(frozen=True, kw_only=True)
class Listed(Source):
    """A source whose images are files."""

    @abstractmethod
    def listing(self, place: Path) -> Listing:
        """The files that are meant."""

    @abstractmethod
    def is_there(self, place: Path) -> bool:
        """Whether the data may be at this place."""

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        place = next(filter(self.is_there, places), None)
        if place is None:
            return Found(places)
        dealt = deal(self.name, self.listing(place))
        counts = (len(dealt.train), len(dealt.test))
        files = tuple(entry.file for entry in dealt.entries)
        return Found(places, place, files, counts, "; ".join(dealt.notes))

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        size = DEFAULT_SIZE if image_size is None else image_size
        if size < 8:
            raise ConfigError(f"data.image_size = {size} is too small; the networks need 8 or more")
        found = Found(self.places(root))
        place = next(filter(self.is_there, found.looked), None)
        if place is None:
            raise self.missing(root, found, "the folder" if self.name == "folder" else "the file")
        dealt = deal(self.name, self.listing(place))
        entries = dealt.entries
        looked = survey([entry.file for entry in entries])
        channels = 1 if looked.grey else 3
        needed = len(entries) * channels * size * size
        if needed > memory_limit():
            raise DataError(f"{self.name}: the images need {in_words(needed)}; set a smaller data.image_size")
        images, sound, depth = decode_all(looked, channels, size, f"reading {place.name}", leave_out=True)
        labels = numbers(dealt.entries, dealt.classes)[sound]
        ends = np.cumsum([0, len(dealt.train), len(dealt.val), len(dealt.test)])
        ends = np.concatenate([[0], np.cumsum(sound)])[ends]  # of the sound images
        parts = [(images[start:end], labels[start:end]) for start, end in itertools.pairwise(ends.tolist())]
        if not (parts[0][1] >= 0).any() or not len(parts[2][1]):
            looked.require_sound()
        notes = tuple(filter(None, ("; ".join(dealt.notes), depth, looked.left_out)))
        clients = [entry.client for entry, keep in zip(dealt.train, sound, strict=False) if keep]
        noted = list(notes)
        owners = holders(clients, parts[0][1], "images", noted)
        return self.deliver(
            parts[0],
            parts[2],
            classes=dealt.classes,
            validation=parts[1],
            clients=owners,
            notes=noted,
        )


def deal(name: str, listing: Listing) -> Dealt:
    """The splits of a listing, as its entries say; a test split is cut where there is none."""
    by_split: dict[str, list[Entry]] = {"train": [], "val": [], "test": []}
    left_out = 0
    for entry in listing.entries:
        if entry.split in ("val", "test") and entry.label is None:
            left_out += 1
        else:
            by_split[entry.split or "train"].append(entry)
    train, val, test = (tuple(entries) for entries in by_split.values())
    classes = in_order_of(listing, train)
    notes = []
    if not train and (test or val):
        raise DataError(f"{name}: there are no training images in {listing.root}; add them in train/CLASS")
    for split, entries in (("val", val), ("test", test)):
        strange = next((entry.label for entry in entries if entry.label not in classes), None)
        if strange is not None:
            raise DataError(
                f"{name}: class '{strange}' has images in the {split} split of {listing.root}, but none to "
                "train on; add some, or take them out of the other split"
            )
    if not test:
        total = sum(entry.label is not None for entry in train)
        train, test = _cut(train, classes)
        notes.append(f"no test images: {len(test):,} of {total:,} images held out as the test split")
    if not classes or not test:
        folders = "expected CLASS/* or train|test/CLASS/*, or a labels.csv"
        wanted = "give two rows or more of a class" if listing.form == "table" else folders
        raise DataError(f"{name}: too few images with a label in {listing.root}; {wanted}")
    if NONE_IN_ARRAYS in classes:
        notes.append(MINUS_ONE)
    without = sum(entry.label is None for entry in train)
    if without:
        notes.append(f"{without:,} of {len(train):,} training images are unlabelled")
    if left_out:
        notes.append(f"{left_out:,} test or validation images without a label are left out")
    if listing.empty:
        notes.append(f"empty folders are not classes: {listed(listing.empty)}")
    if listing.ignored:
        notes.append(f"files ignored because they are not images: {listing.ignored:,}")
    return Dealt(train, val, test, classes, tuple(notes))


def in_order_of(listing: Listing, entries: Sequence[Entry]) -> tuple[str, ...]:
    """The classes of these entries: folders by their letters, numbers in tables by their size."""
    names = {entry.label for entry in entries if entry.label is not None}
    return tuple(sorted(names)) if listing.form == "folder" else in_order(names)


def numbers(entries: Sequence[Entry], classes: Sequence[str]) -> Array:
    """The number of each entry's class; -1 where it has none."""
    place = {name: number for number, name in enumerate(classes)}
    labels = (NO_LABEL if entry.label is None else place[entry.label] for entry in entries)
    return np.fromiter(labels, np.int64, len(entries))


def holders(
    clients: Sequence[str | None], labels: Array, what: str, notes: list[str]
) -> tuple[Array, tuple[str, ...]] | None:
    """The number of each sample's client, and their names; None where no sample has one.

    Samples of nobody, often the many that nobody labelled, are dealt to the clients in turn, class by class.
    """
    known = in_order(client for client in clients if client)
    if not known:
        return None
    place = {client: number for number, client in enumerate(known)}
    numbers = np.array([place[client] if client else -1 for client in clients], np.int64)
    nameless = np.flatnonzero(numbers < 0)
    if len(nameless):
        in_turn = nameless[np.argsort(labels[nameless], kind="stable")]
        numbers[in_turn] = np.arange(len(in_turn)) % len(known)
        count = f"{len(nameless):,} of {len(numbers):,} training {what}"
        notes.append(
            f"{count} belong to no client: they are distributed evenly over the {len(known):,} clients"
        )
    return numbers, known


def _cut(entries: tuple[Entry, ...], classes: Sequence[str]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Hold out a fifth of each class, at least one image of any that has two."""
    labels = numbers(entries, classes)
    held = hold_out(labels, held_counts(labels, len(classes)))
    return (
        tuple(entries[place] for place in np.flatnonzero(~held)),
        tuple(entries[place] for place in np.flatnonzero(held)),
    )


def held_counts(labels: Array, classes: int) -> list[int]:
    """How many images of each class are held out."""
    counts = np.bincount(labels[labels >= 0], minlength=classes).tolist()
    return [max(round(count / TEST_SHARE), 1) if count > 1 else 0 for count in counts]
