"""People's own data in one .npz file: ``npz:FILE``. ``data/reader/arrays.py`` says what the arrays mean.

Images are uint8, N×H×W or N×H×W×3, vectors are numbers, N×d; labels are whole numbers, one for each of them,
-1 where nobody knows it. Without a test split, a fixed fifth of each class is held out. Images are not
mirrored, since a mirrored digit or organ may be another class.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.data.archives import FAULTS
from proxyfl.data.dataset import Dataset
from proxyfl.data.reader.arrays import Arrays, naming, read_arrays, read_headers
from proxyfl.data.sources.base import Array, Found, Source, count_classes, hold_out
from proxyfl.data.sources.listed import held_counts, holders
from proxyfl.data.vectors import is_vectors

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Npz(Source):
    """One file, named as ``npz:FILE``."""

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            return Found(places)
        try:
            headers = read_headers(file)
            names = naming(file, headers, self.keys)
            counts = headers[names["train"][0]][0][0], headers[names["test"][0]][0][0]
        except (*FAULTS, DataError, LookupError):
            return Found(places, file.parent, (file,))
        return Found(places, file.parent, (file,), counts)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if found.folder is None:
            raise self.missing(root, found, "the .npz file")
        file = found.files[0]
        try:
            arrays = read_arrays(file, self.keys)
        except ValueError as error:
            raise self.damaged(root, file, str(error)) from None
        except FAULTS as error:
            raise self.damaged(root, file, f"it cannot be read ({error})") from None
        except DataError as error:
            unnamed = ", expected images and labels" in str(error)
            hint = "; name them with data.keys, as in data.keys=images=KEY,labels=KEY" if unnamed else ""
            raise DataError(f"npz: {error}{hint}") from None
        return dress(self, file, arrays)


def dress(source: Source, file: Path, arrays: Arrays) -> Dataset:
    """The data set that a file's arrays are; a test split is cut where there is none."""
    if "train" not in arrays.parts:
        raise DataError(f"{source.name}: {file} has no training images; add x_train or train_images")
    train, owners = arrays.parts["train"], arrays.clients
    what = "vectors" if is_vectors(train[0]) else "images"
    classes = arrays.classes or count_classes(source.name, *(labels for _, labels in arrays.parts.values()))
    parts = {
        split: _labelled(source.name, what, part) for split, part in arrays.parts.items() if split != "train"
    }
    if "test" not in parts:
        held = _held(f"{source.name}: {file}", what, train[1], len(classes))
        counts = held.sum(), len(held)
        log.warning("%s: no test %s: %d of %d held out as the test split", source.name, what, *counts)
        parts["test"] = train[0][held], train[1][held]
        train, owners = (train[0][~held], train[1][~held]), None if owners is None else owners[~held]
    return source.deliver(
        train,
        parts["test"],
        classes=classes,
        validation=parts.get("val"),
        clients=None if owners is None else holders(source.name, [name or None for name in owners.tolist()]),
        features=arrays.features,
    )


def _held(where: str, what: str, labels: Array, classes: int) -> Array:
    if labels.max() >= classes or labels.min() < -1:
        raise DataError(f"{where}: labels go from {labels.min()} to {labels.max()}; use -1 to {classes - 1}")
    held = hold_out(labels, held_counts(labels, classes))
    if not held.any():
        raise DataError(f"{where} has too few {what} with a label; give two or more of a class")
    return held


def _labelled(name: str, what: str, part: tuple[Array, Array]) -> tuple[Array, Array]:
    """A test or validation split without the samples that have no label."""
    known = part[1] != -1
    if known.all():
        return part
    log.warning("%s: %d test or validation %s without a label are left out", name, np.sum(~known), what)
    return part[0][known], part[1][known]


NPZ = Npz(
    name="npz",
    title="Your own arrays, MedMNIST's too: npz:FILE",
    takes_path=True,
    takes_keys=True,
    flip=False,
)
