"""The data sets that can be named, and reading them: ``load("cifar10")``, ``load("folder:PATH")``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from proxyfl.core.errors import ConfigError, DataError, ProxyFLError, nearest
from proxyfl.data.files import data_root
from proxyfl.data.sources.base import OWN, Found, Source, meant
from proxyfl.data.sources.cifar import CIFAR10, CIFAR100
from proxyfl.data.sources.cinic import CINIC10
from proxyfl.data.sources.digits import DIGITS
from proxyfl.data.sources.folder import FOLDER
from proxyfl.data.sources.idx import FASHION_MNIST, IDX, MNIST
from proxyfl.data.sources.npz import NPZ
from proxyfl.data.sources.registered import Reader, registered
from proxyfl.data.sources.svhn import SVHN
from proxyfl.data.sources.table import TABLE

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

__all__ = ["SOURCES", "Found", "Source", "absent", "find", "load", "meant", "register"]

R = TypeVar("R", bound=Reader)
log = logging.getLogger(__name__)

_KNOWN = (DIGITS, CIFAR10, CIFAR100, SVHN, CINIC10, FASHION_MNIST, MNIST, IDX, FOLDER, NPZ, TABLE)
SOURCES: dict[str, Source] = {source.name: source for source in _KNOWN}


def register(
    name: str, *, title: str = "", classes: Sequence[str] | None = None, flip: bool = False
) -> Callable[[R], R]:
    """Register a data set of your own: a decorator for a function that returns its images.

    It returns a :class:`~proxyfl.data.Dataset`, or the training part and the test part, each as (images,
    labels) or a torch Dataset, in any form that :meth:`Dataset.of` takes. ``flip`` states whether a mirrored
    image keeps its class. Example, as a file: images with one bright quadrant::

        import numpy as np
        from proxyfl import register_dataset

        @register_dataset("quadrants", title="Which quadrant is bright?")
        def quadrants():
            rng = np.random.default_rng(0)

            def draw(count):
                labels = np.arange(count) % 4
                images = rng.integers(0, 120, (count, 8, 8), dtype=np.uint8)
                for image, label in zip(images, labels):
                    top, left = 4 * (label // 2), 4 * (label % 2)
                    image[top : top + 4, left : left + 4] += 100
                return images, labels

            return draw(400), draw(100)

    ``proxyfl --plugin FILE run --data quadrants`` trains on it. The function is called wherever the data is
    needed, also when a run is resumed, and must give the same each time.
    """
    if not isinstance(name, str):
        raise ConfigError('a data set needs a name: @register_dataset("mine") above the function')
    if not name or ":" in name:
        raise ConfigError(f"'{name}' cannot name a data set: use letters, digits and dashes")

    def remember(reader: R) -> R:
        if name in SOURCES:
            raise ConfigError(f"a data set called '{name}' is known already; choose another name")
        SOURCES[name] = registered(name, reader, title, classes, flip)
        return reader

    return remember


def absent(names: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Those of the data sets that are not at hand, each with how to get it."""
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            present = find(name).locate(data_root(root)).present
        except ProxyFLError:
            present = False
        if not present:
            where = f" --data-root {root}" if root else ""
            missing[name] = f"proxyfl data fetch {name}{where}"
    return missing


def find(name: str) -> Source:
    """The source with this name; ``folder:``, ``npz:``, ``table:`` and ``idx:`` carry a path."""
    word, colon, path = name.partition(":")
    source = SOURCES.get(word)
    if source is None:
        hint = f"{nearest(word, SOURCES)} (your own: register it and name its file with --plugin)"
        raise ConfigError(f"unknown data set '{word}': {meant(name) or hint}")
    return source.at(path) if colon else source


def is_own(name: str) -> bool:
    """Whether a name means people's own data: ``folder:PATH``, ``npz:FILE``, ``table:FILE``."""
    return name.partition(":")[0] in OWN and ":" in name


def absolute(name: str, root: Path | str | None = None) -> str:
    """A name that means the same from every folder: ``folder:PATH`` below the cwd made absolute.

    What lies below the data root keeps its name, so that it can move together with the root.
    """
    word, colon, path = name.partition(":")
    here = Path.cwd() / Path(path).expanduser()
    if not colon or (data_root(root) / path).exists() or not here.exists():
        return name
    return f"{word}:{here.resolve()}"


def load(
    name: str,
    root: Path | str | None = None,
    *,
    image_size: int | None = None,
    flip: bool | None = None,
    keys: str = "",
) -> Dataset:
    """Read a data set from the data folder ``root`` (else PROXYFL_DATA, else the user's cache folder).

    >>> import proxyfl
    >>> proxyfl.load_dataset("digits", image_size=16).image_size
    16

    ``image_size`` resizes the images, ``flip`` states whether mirrored images keep their class, and ``keys``
    gives the names of arrays or columns (``images=pixels,labels=diagnosis``).
    """
    source = find(name).reading(keys)
    dataset = source.load(data_root(root), image_size=image_size)
    for note in dataset.notes:
        log.warning("%s: %s", source.name, note)
    height, width = dataset.train.images.shape[-2:]
    if image_size is not None:
        dataset = dataset.resized(image_size)
    elif dataset.train.called == "images" and height != width:
        raise DataError(f"{name}: images are {height}×{width}; set data.image_size to make them square")
    return dataset if flip is None else replace(dataset, flip=flip)
