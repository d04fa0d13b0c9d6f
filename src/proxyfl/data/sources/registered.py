"""Data sets that people register: a function of their own that gives the images."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.sources.base import Found, Source

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

Reader = Callable[[], Any]
"""Gives a :class:`Dataset`, or what :meth:`Dataset.of` makes one of: the training part and the test part."""


@dataclass(frozen=True, kw_only=True)
class Registered(Source):
    """Whatever ``read`` gives."""

    read: Reader

    def locate(self, root: Path) -> Found:
        try:
            place = Path(inspect.getsourcefile(self.read) or self.read.__module__)
        except TypeError:  # an object that can be called
            place = Path(type(self.read).__module__)
        return Found((place,), place)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        from proxyfl.data.dataset import Dataset

        given = self.read()
        if isinstance(given, Dataset):
            return replace(given, name=self.name)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise DataError(
                f"{self.name}: its function gives a {type(given).__name__}; return a Dataset, or the "
                "training and the test part, each as (images, labels) or a torch Dataset"
            )
        train, test = given
        images, labels = train if isinstance(train, tuple) and len(train) == 2 else (train, None)
        try:
            return Dataset.of(images, labels, test=test, classes=self.classes, name=self.name, flip=self.flip)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None


def registered(
    name: str, reader: Reader, title: str, classes: Sequence[str] | None, flip: bool
) -> Registered:
    """The source that a function becomes."""
    if not callable(reader):
        raise ConfigError(f"data set '{name}' needs a function that gives its images, not {reader!r}")
    title = title or (inspect.getdoc(reader) or "Yours").partition("\n")[0]
    known = tuple(classes) if classes else None
    return Registered(name=name, title=title, classes=known, flip=flip, read=reader)
