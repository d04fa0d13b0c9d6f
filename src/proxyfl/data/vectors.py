"""Vectors: samples of shape (d,) beside images. What their numbers may be, their standardisation and views.

Every feature is standardised by mean and standard deviation of the training split; noise is in that unit, and
a feature that is dropped has its mean. A weak view adds noise; a strong one takes some features from another
sample of the batch, drops some and adds more noise. Random numbers come from the CPU generator passed in; how
many are drawn depends on the shape of the batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.core.views import VectorSettings
from proxyfl.data.augment import normalise

Array: TypeAlias = np.ndarray[Any, Any]
KINDS = "fiub"
"""Numpy's kinds of numbers that are read: floats, whole numbers, true and false."""
CONSTANT = 1e-7
"""A standard deviation below this share of a feature's largest value is rounding: float32 holds no more."""


def is_vectors(samples: Any) -> bool:
    """Whether an array or a tensor of samples holds vectors (N, d) and not images (N, C, H, W)."""
    return len(samples.shape) == 2


def is_encoded(samples: Tensor) -> bool:
    """Whether a tensor holds features of several views of each sample (N, views, d): the sample itself, its
    weak views, its strong views.
    """
    return samples.dim() == 3


def sample_shape(samples: Tensor) -> tuple[int, ...]:
    """Of what a network is given."""
    return tuple(samples.shape[2:] if is_encoded(samples) else samples.shape[1:])


def draw_places(count: int, places: range, generator: torch.Generator) -> Tensor:
    """For each of ``count`` samples one of its views."""
    return places.start + torch.randint(len(places), (count,), generator=generator)


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


def constant(vectors: Tensor) -> list[int]:
    """The features that have one value alone."""
    return (vectors.amin(0) == vectors.amax(0)).nonzero()[:, 0].tolist()


def standardise(vectors: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std of every feature, in float32."""
    if not len(mean) == len(std) == vectors.shape[1]:
        raise DataError(
            f"vectors of {vectors.shape[1]} features need as many means and stds, not {len(mean)} and "
            f"{len(std)}"
        )
    centre, spread = (torch.tensor(part, dtype=torch.float32, device=vectors.device) for part in (mean, std))
    return (vectors - centre) / spread


def prepared(samples: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """What a network is given: vectors standardised, images normalised; of encoded views the first."""
    seen = samples[:, 0] if is_encoded(samples) else samples
    return (standardise if is_vectors(seen) else normalise)(seen, mean, std)


def weak(vectors: Tensor, generator: torch.Generator, settings: VectorSettings) -> Tensor:
    """Standardised vectors with noise."""
    return _noised(vectors, generator, settings.noise)


def strong(vectors: Tensor, generator: torch.Generator, settings: VectorSettings) -> Tensor:
    """Standardised vectors, some features exchanged with another sample's, some dropped, with more noise."""
    other = torch.randperm(len(vectors), generator=generator).to(vectors.device)
    exchanged = _share(vectors, generator, settings.mix)
    dropped = _share(vectors, generator, settings.dropout)
    mixed = torch.where(exchanged, vectors[other], vectors).masked_fill(dropped, 0)
    return _noised(mixed, generator, settings.strong_noise)


def _share(vectors: Tensor, generator: torch.Generator, share: float) -> Tensor:
    """True for this share of all features, each by a coin of its own."""
    return (torch.rand(vectors.shape, generator=generator) < share).to(vectors.device)


def _noised(vectors: Tensor, generator: torch.Generator, scale: float) -> Tensor:
    return vectors + scale * torch.randn(vectors.shape, generator=generator).to(vectors.device)
