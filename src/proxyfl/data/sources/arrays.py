"""What the sources of arrays and of tables of vectors share: from arrays to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.data.numbers import is_vectors
from proxyfl.data.reader.arrays import Arrays
from proxyfl.data.sources.base import Array, Source, count_classes, hold_out
from proxyfl.data.sources.listed import held_counts, holders
from proxyfl.data.texts import is_texts

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset


def dress(source: Source, file: Path, arrays: Arrays) -> Dataset:
    """The data set that a file's arrays are; a test split is cut where there is none."""
    if "train" not in arrays.parts:
        raise DataError(f"{source.name}: {file} has no training images; add x_train or train_images")
    train, owners = arrays.parts["train"], arrays.clients
    what = _called(train[0])
    classes = arrays.classes or count_classes(source.name, *(labels for _, labels in arrays.parts.values()))
    notes = list(arrays.notes)
    parts = {split: _labelled(what, part, notes) for split, part in arrays.parts.items() if split != "train"}
    if "test" not in parts:
        held = _held(f"{source.name}: {file}", what, train[1], len(classes))
        notes.append(f"no test {what}: {held.sum():,} of {len(held):,} held out as the test split")
        parts["test"] = train[0][held], train[1][held]
        train, owners = (train[0][~held], train[1][~held]), None if owners is None else owners[~held]
    return source.deliver(
        train,
        parts["test"],
        classes=classes,
        validation=parts.get("val"),
        clients=None if owners is None else holders(source.name, [name or None for name in owners.tolist()]),
        features=arrays.features,
        notes=notes,
    )


def _called(samples: Array) -> str:
    if is_texts(samples):
        return "texts"
    return "vectors" if is_vectors(samples) else "images"


def _held(where: str, what: str, labels: Array, classes: int) -> Array:
    if labels.max() >= classes or labels.min() < -1:
        raise DataError(f"{where}: labels go from {labels.min()} to {labels.max()}; use -1 to {classes - 1}")
    held = hold_out(labels, held_counts(labels, classes))
    if not held.any():
        raise DataError(f"{where} has too few {what} with a label; give two or more of a class")
    return held


def _labelled(what: str, part: tuple[Array, Array], notes: list[str]) -> tuple[Array, Array]:
    """A test or validation split without the samples that have no label."""
    known = part[1] != -1
    if known.all():
        return part
    notes.append(f"{np.sum(~known):,} test or validation {what} without a label are left out")
    return part[0][known], part[1][known]
