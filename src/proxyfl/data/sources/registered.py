"""Data sets that people register: a function of their own that gives the images."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.dataset import Dataset
from proxyfl.data.sources.base import Array, Found, Source

Pair: TypeAlias = tuple[Array | Tensor, Array | Tensor]
Reader: TypeAlias = Callable[[], "Dataset | tuple[Pair, Pair]"]
"""Gives a :class:`Dataset`, or (training images, labels) and (test images, labels)."""


@dataclass(frozen=True, kw_only=True)
class Registered(Source):
    """Whatever ``read`` gives, checked like every other source."""

    read: Reader

    def locate(self, root: Path) -> Found:
        try:
            place = Path(inspect.getsourcefile(self.read) or self.read.__module__)
        except TypeError:  # an object that can be called
            place = Path(type(self.read).__module__)
        return Found((place,), place)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        given = self.read()
        if isinstance(given, Dataset):
            return replace(given, name=self.name)
        try:
            (images, labels), (test_images, test_labels) = given
            train, test = (_array(images), _array(labels)), (_array(test_images), _array(test_labels))
        except (TypeError, ValueError):
            raise DataError(
                f"{self.name}: its function must give a Dataset, or (images, labels) for training and "
                "another such pair for testing"
            ) from None
        return self.deliver((_channels_first(train[0]), train[1]), (_channels_first(test[0]), test[1]))


def _array(given: Array | Tensor) -> Array:
    return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)


def _channels_first(images: Array) -> Array:
    """Images as (N, channels, height, width); they may have their channels last, or none."""
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images)


def registered(name: str, reader: Any, title: str, classes: tuple[str, ...] | None, flip: bool) -> Registered:
    """The source that a function becomes."""
    if not callable(reader):
        raise ConfigError(f"data set '{name}' needs a function that gives its images, not {reader!r}")
    title = title or (inspect.getdoc(reader) or "Yours").partition("\n")[0]
    return Registered(name=name, title=title, classes=classes, flip=flip, read=reader)
