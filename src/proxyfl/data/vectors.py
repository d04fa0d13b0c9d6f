"""Vectors: samples of shape (d,) beside images, their standardisation and views.

Every feature is standardised by mean and standard deviation of the training split; noise is in that unit, and
a feature that is dropped has its mean. A weak view adds noise; a strong one takes some features from another
sample of the batch, drops some and adds more noise. Random numbers come from the CPU generator passed in; how
many are drawn depends on the shape of the batch alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.core.views import VectorSettings
from proxyfl.data.augment import normalise
from proxyfl.data.numbers import is_vectors


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


def constant(vectors: Tensor) -> list[int]:
    """The features that have one value alone."""
    return (vectors.amin(0) == vectors.amax(0)).nonzero()[:, 0].tolist()


def standardise(vectors: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std of every feature, in float32."""
    if not len(mean) == len(std) == vectors.shape[1]:
        raise DataError(
            f"vectors of {vectors.shape[1]} features need as many means and stds, not "
            f"{len(mean)} and {len(std)}"
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
