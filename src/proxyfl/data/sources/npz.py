"""People's own data in one .npz file: ``npz:FILE``. ``data/reader/arrays.py`` says what the arrays mean.

Images are uint8, N×H×W or N×H×W×3; labels are whole numbers, one for each image, -1 where nobody knows it.
Without test images, a fixed fifth of each class is held out. Images are not mirrored, since a mirrored digit
or organ may be another class.
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
        return self._dress(file, arrays)

    def _dress(self, file: Path, arrays: Arrays) -> Dataset:
        if "train" not in arrays.parts:
            raise DataError(f"npz: {file} has no training images; add x_train or train_images")
        train, owners = arrays.parts["train"], arrays.clients
        classes = arrays.classes or count_classes(self.name, *(labels for _, labels in arrays.parts.values()))
        parts = {split: _labelled(part) for split, part in arrays.parts.items() if split != "train"}
        if "test" not in parts:
            held = _held(file, train[1], len(classes))
            log.warning("npz: no test images: %d of %d held out as the test split", held.sum(), len(held))
            parts["test"] = train[0][held], train[1][held]
            train, owners = (train[0][~held], train[1][~held]), None if owners is None else owners[~held]
        return self.deliver(
            train,
            parts["test"],
            classes=classes,
            validation=parts.get("val"),
            clients=None if owners is None else holders(self.name, owners.tolist()),
        )


def _held(file: Path, labels: Array, classes: int) -> Array:
    if labels.max() >= classes or labels.min() < -1:
        raise DataError(
            f"npz: {file}: labels go from {labels.min()} to {labels.max()}; use -1 to {classes - 1}"
        )
    held = hold_out(labels, held_counts(labels, classes))
    if not held.any():
        raise DataError(f"npz: {file} has too few images with a label; give two or more of a class")
    return held


def _labelled(part: tuple[Array, Array]) -> tuple[Array, Array]:
    """A test or validation split without the images that have no label."""
    known = part[1] != -1
    if known.all():
        return part
    log.warning("npz: %d test or validation images without a label are left out", np.sum(~known))
    return part[0][known], part[1][known]


NPZ = Npz(
    name="npz",
    title="Your own arrays, MedMNIST's too: npz:FILE",
    takes_path=True,
    takes_keys=True,
    flip=False,
)
