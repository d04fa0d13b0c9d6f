"""What the numbers of vectors may be, their mean and their standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]
KINDS = "fiub"
"""Numpy's kinds of numbers that are read: floats, whole numbers, true and false."""
CONSTANT = 1e-7
"""A standard deviation below this share of a feature's largest value is rounding: float32 holds no more."""


def is_vectors(samples: Any) -> bool:
    """Whether an array or a tensor of samples holds vectors (N, d) and not images (N, C, H, W)."""
    return len(samples.shape) == 2


def numbers(array: Array, what: str, names: Sequence[str] = (), lines: Sequence[int] = ()) -> Array:
    """Vectors as float32. What is no finite number is an error that names ``what``, its row and its column:
    by the ``names`` of the columns and the ``lines`` of the rows where there are some, else counted from 0.
    """
    if array.dtype.kind not in KINDS:
        raise DataError(f"{what}: vectors are {array.dtype}; give numbers")
    if not array.shape[1]:
        raise DataError(f"{what}: vectors of shape {array.shape} hold nothing; give at least one feature")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(array, dtype=np.float32)
    wrong = ~np.isfinite(found)
    if wrong.any():
        row, column = (int(place) for place in np.argwhere(wrong)[0])
        value = "nan" if np.isnan(found[row, column]) else f"{array[row, column]:g}"
        place = f"line {lines[row]}" if lines else f"row {row}"
        feature = f"column '{names[column]}'" if names else f"column {column}"
        count = f" ({int(wrong.sum()):,} such values in all)" if wrong.sum() > 1 else ""
        raise DataError(
            f"{what}: {place}, {feature} is {value}, which is no finite number{count}; fill in a value or "
            "leave out the row or the column"
        )
    return found


def statistics(vectors: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every feature; 1 where a feature is constant, so that it becomes 0."""
    mean = vectors.mean(0, dtype=np.float64)
    std = vectors.std(0, dtype=np.float64)
    largest = np.abs(vectors).max(0, initial=0).astype(np.float64)
    return tuple(mean.tolist()), tuple(np.where(std <= CONSTANT * largest, 1.0, std).tolist())
