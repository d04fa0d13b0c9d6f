"""A first look at people's own data: how much there is of what, before the images are read."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proxyfl.core.errors import ConfigError
from proxyfl.data.dataset import Dataset
from proxyfl.data.files import data_root
from proxyfl.data.images import side_of
from proxyfl.data.reader.listing import in_order
from proxyfl.data.sources import find
from proxyfl.data.sources.listed import Listed, deal
from proxyfl.data.sources.table import Tabled
from proxyfl.data.texts import unpack
from proxyfl.data.vectors import constant

MOST_MEASURED = 200
"""Images whose size is looked up: a median needs no more."""


@dataclass(frozen=True)
class Look:
    """What there is. ``counts`` are the labelled training images of each class, ``sides`` the shorter side of
    some images in pixels, ``clients`` the names of those that the data names; vectors have ``features``, of
    which those in ``constant`` have one value alone; ``words`` are how many each training text has.
    """

    counts: dict[str, int]
    unlabelled: int
    test: int
    validation: int
    clients: tuple[str, ...]
    sides: tuple[int, ...]
    notes: tuple[str, ...] = ()
    features: int = 0
    constant: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Of the features, where the data has some; of the column with texts."""
    words: tuple[int, ...] = ()

    @property
    def called(self) -> str:
        if self.words:
            return "texts"
        return "vectors" if self.features else "images"

    @property
    def labelled(self) -> int:
        return sum(self.counts.values())

    @property
    def train(self) -> int:
        return self.labelled + self.unlabelled

    def counted_in(self, dataset: Dataset) -> Look:
        """The same, without the damaged images: these are known once all are read."""
        labels = dataset.train.labels
        return replace(
            self,
            counts={name: int((labels == number).sum()) for number, name in enumerate(dataset.classes)},
            unlabelled=int((labels < 0).sum()),
            test=len(dataset.test),
            validation=0 if dataset.validation is None else len(dataset.validation),
        )

    @property
    def side(self) -> int:
        """The median of the shorter sides."""
        return int(statistics.median(self.sides)) if self.sides else 0


def look(name: str, root: Path | str | None = None, keys: str = "") -> Look:
    """Count what ``folder:PATH``, ``npz:FILE`` or ``table:FILE`` holds; of images only headers are read."""
    source = find(name).reading(keys)
    folder = data_root(root)
    if isinstance(source, Listed):
        place = next(filter(source.is_there, source.places(folder)), None)
        rows = source.rows(place) if place is not None and isinstance(source, Tabled) else None
        if rows is not None:
            return _looked(rows)
        if place is not None:
            return _listed(source, place)
    if not source.takes_path:
        raise ConfigError(f"'{name}' is not your own data; name it as folder:PATH, npz:FILE or table:FILE")
    return _looked(source.load(folder))


def _looked(dataset: Dataset) -> Look:
    sides = (min(dataset.train.images.shape[-2:]),) if dataset.train.called == "images" else ()
    found = Look({}, 0, 0, 0, dataset.clients, sides).counted_in(dataset)
    if dataset.is_texts:
        words = tuple(len(text.split()) for text in unpack(dataset.train.images))
        return replace(found, words=words, names=dataset.features)
    if not dataset.is_vectors:
        return found
    names = dataset.features or tuple(map(str, range(dataset.channels)))
    same = tuple(names[place] for place in constant(dataset.train.images))
    return replace(found, features=dataset.channels, constant=same, names=dataset.features)


def _listed(source: Listed, place: Path) -> Look:
    dealt = deal(source.name, source.listing(place))
    found = Counter(entry.label for entry in dealt.train if entry.label is not None)
    clients = {entry.client for entry in dealt.train if entry.client is not None}
    sides = _sides([entry.file for entry in dealt.train])
    return Look(
        {label: found[label] for label in dealt.classes},
        sum(entry.label is None for entry in dealt.train),
        len(dealt.test),
        len(dealt.val),
        in_order(clients),
        sides,
        dealt.notes,
    )


def _sides(files: Sequence[Path]) -> tuple[int, ...]:
    """The shorter side of some of the images, spread evenly; damaged ones are passed over."""
    step = max(1, len(files) // MOST_MEASURED)
    return tuple(side for side in map(side_of, files[::step]) if side)
