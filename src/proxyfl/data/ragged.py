"""Many lists of image indices in one flat array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxyfl.core.errors import ConfigError
from proxyfl.data.labels import Indices


@dataclass(frozen=True, eq=False)
class Ragged:
    """Many index lists in one flat array: list ``k`` is ``values[starts[k]:stops[k]]``. Lists may overlap."""

    values: Indices
    starts: Indices
    stops: Indices

    def __post_init__(self) -> None:
        if any(part.ndim != 1 or part.dtype != np.int64 for part in (self.values, self.starts, self.stops)):
            raise ConfigError("index lists must be flat int64 arrays")
        if len(self.starts) != len(self.stops):
            raise ConfigError(f"{len(self.starts)} starts do not match {len(self.stops)} stops")
        if self.values.min(initial=0) < 0:
            raise ConfigError(f"image index {self.values.min()} is negative")
        if self.starts.min(initial=0) < 0 or self.stops.max(initial=0) > len(self.values):
            raise ConfigError(f"a list reaches outside the {len(self.values)} stored indices")
        if (self.starts > self.stops).any():
            raise ConfigError(f"list {int((self.starts > self.stops).argmax())} ends before it starts")

    @classmethod
    def from_sizes(cls, values: Indices, sizes: Indices) -> Ragged:
        """Consecutive lists of the given sizes."""
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
        return cls(values, offsets[:-1], offsets[1:])

    @classmethod
    def empty(cls, lists: int) -> Ragged:
        """So many lists without an image."""
        return cls.from_sizes(np.zeros(0, dtype=np.int64), np.zeros(lists, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, k: int) -> Indices:
        return self.values[self.starts[k] : self.stops[k]]

    @property
    def sizes(self) -> Indices:
        return self.stops - self.starts

    def flat(self) -> tuple[Indices, Indices]:
        """Every entry of every list as (list number, value)."""
        sizes = self.sizes
        owner = np.repeat(np.arange(len(self), dtype=np.int64), sizes)
        shift = np.repeat(self.starts - (np.cumsum(sizes) - sizes), sizes)
        return owner, self.values[np.arange(len(owner)) + shift]


def deal(index: Indices, owner: Indices, clients: int) -> Ragged:
    """Each image to its owner, in order."""
    order = np.argsort(owner, kind="stable")
    return Ragged.from_sizes(index[order], np.bincount(owner, minlength=clients))


def joined(first: Ragged, index: Indices, owner: Indices) -> Ragged:
    """Every list with what each owner gets besides behind it."""
    whose, images = first.flat()
    return deal(np.concatenate([images, index]), np.concatenate([whose, owner]), len(first))
