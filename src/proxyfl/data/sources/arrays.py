"""What the sources of arrays and of tables of vectors share: from arrays to a data set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.data.numbers import is_vectors
from proxyfl.data.reader.arrays import Arrays
from proxyfl.data.sources.base import Array, Source, count_classes, hold_out
from proxyfl.data.sources.listed import held_counts, holders
from proxyfl.data.texts import is_texts

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

Parts: TypeAlias = dict[str, tuple[Array, Array]]
"""Samples and labels of each split."""


def dress(source: Source, file: Path, arrays: Arrays) -> Dataset:
    """The data set that a file's arrays are; a test split is cut where there is none."""
    if "train" not in arrays.parts:
        raise DataError(f"{source.name}: {file} has no training images; add x_train or train_images")
    owners, what = arrays.clients, _called(arrays.parts["train"][0])
    notes = list(arrays.notes)
    found = arrays.parts
    if arrays.classes is None:
        classes, found = numbered(source.name, found)
    else:
        classes = arrays.classes
    train = found["train"]
    parts = {split: _labelled(what, part, notes) for split, part in found.items() if split != "train"}
    if "test" not in parts:
        held = _held(f"{source.name}: {file}", what, train[1], len(classes))
        notes.append(f"no test {what}: {held.sum():,} of {len(held):,} held out as the test split")
        parts["test"] = train[0][held], train[1][held]
        train, owners = (train[0][~held], train[1][~held]), None if owners is None else owners[~held]
    named = None if owners is None else holders(owners.tolist(), train[1], what, notes)
    return source.deliver(
        train,
        parts["test"],
        classes=classes,
        validation=parts.get("val"),
        clients=named,
        features=arrays.features,
        notes=notes,
    )


def numbered(name: str, parts: Parts) -> tuple[tuple[str, ...], Parts]:
    """The classes by their numbers, without those that no sample has: many people count from 1."""
    every = count_classes(name, *(labels for _, labels in parts.values()))
    there = np.unique(np.concatenate([labels for _, labels in parts.values()]))
    there = there[there >= 0]
    if len(there) == len(every):
        return every, parts
    place = np.full(len(every), -1)
    place[there] = np.arange(len(there))
    renumbered = {
        split: (samples, np.where(labels < 0, labels, place[np.maximum(labels, 0)]))
        for split, (samples, labels) in parts.items()
    }
    return tuple(every[number] for number in there), renumbered


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
