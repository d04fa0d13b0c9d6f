"""Who has labels: which images of each class keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxyfl.core.errors import ConfigError, DataError

Indices = NDArray[np.int64]


def no_images() -> Indices:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Image indices with their classes, ordered by class; ``classes`` counts the empty ones too."""

    index: Indices
    label: Indices
    classes: int

    def __len__(self) -> int:
        return len(self.index)


def split_labels(labels: Any, per_class: int | Sequence[int], seed: int) -> tuple[Pairs, Pairs]:
    """The labelled and the unlabelled images, both as indices into ``labels`` ordered by class.

    Each class in turn is permuted by one legacy numpy generator and its first ``per_class`` images keep
    their labels; a class with fewer images keeps all of them. A sequence gives every class its own count.
    """
    given = label_array(labels)
    wanted = _per_class_counts(per_class, int(given.max(initial=-1)) + 1)
    generator = legacy_generator(seed, "split_seed")
    by_class = np.argsort(given, kind="stable")
    ends = np.cumsum(np.bincount(given, minlength=len(wanted)))
    keeps_label = np.zeros(len(given), dtype=bool)
    start = 0
    for end, count in zip(ends.tolist(), wanted, strict=True):
        by_class[start:end] = generator.permutation(by_class[start:end])
        keeps_label[start : min(start + count, end)] = True
        start = end
    ordered = given[by_class]
    labelled = Pairs(by_class[keeps_label], ordered[keeps_label], len(wanted))
    unlabelled = Pairs(by_class[~keeps_label], ordered[~keeps_label], len(wanted))
    return labelled, unlabelled


def stratified(labels: Any, ratio: float, classes: int) -> list[int]:
    """How many images of each class keep their label: that share of those whose class is known, at least one.

    >>> stratified([0] * 50 + [1] * 10 + [2] + [-1] * 99, 0.1, 3)
    [5, 1, 1]
    """
    given = label_array(labels, unknown=True)
    counts = np.bincount(given[given >= 0], minlength=classes).tolist()
    return [min(count, max(1, round(ratio * count))) for count in counts]


def label_array(labels: Any, *, unknown: bool = False) -> Indices:
    """Labels of any kind (list, array, tensor) as a flat int64 array of classes from 0; ``unknown`` admits -1
    for images whose class nobody knows.
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1:
        raise DataError(f"labels must be a flat list of classes, not an array of shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise DataError(f"labels must be whole numbers, not {array.dtype}")
    flat: Indices = array.astype(np.int64)
    if flat.min(initial=0) < -int(unknown):
        raise DataError(f"labels must count from 0; the smallest is {flat.min()}")
    return flat


def legacy_generator(seed: int, setting: str) -> np.random.RandomState:
    """A numpy legacy generator; its streams never change between numpy versions."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{setting} = {seed} is out of range; use 0 to {2**32 - 1}")
    return np.random.RandomState(seed)


def _per_class_counts(per_class: int | Sequence[int], classes: int) -> list[int]:
    counts = [int(n) for n in per_class] if isinstance(per_class, Sequence) else [int(per_class)] * classes
    if len(counts) < classes:
        raise ConfigError(f"per_class has {len(counts)} counts for {classes} classes; give one per class")
    if min(counts, default=0) < 0:
        raise ConfigError(f"per_class = {min(counts)} is negative; use 0 or more labels per class")
    return counts
