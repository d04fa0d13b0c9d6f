"""The data sets that can be named, and reading them: ``load("cifar10")``, ``load("folder:PATH")``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from proxyfl.core.errors import ConfigError, DataError, nearest
from proxyfl.data.dataset import Dataset
from proxyfl.data.files import data_root
from proxyfl.data.sources.base import Found, Source
from proxyfl.data.sources.cifar import CIFAR10, CIFAR100
from proxyfl.data.sources.cinic import CINIC10
from proxyfl.data.sources.digits import DIGITS
from proxyfl.data.sources.folder import FOLDER
from proxyfl.data.sources.idx import FASHION_MNIST, IDX, MNIST
from proxyfl.data.sources.npz import NPZ
from proxyfl.data.sources.svhn import SVHN

__all__ = ["SOURCES", "Found", "Source", "find", "load"]

_KNOWN = (DIGITS, CIFAR10, CIFAR100, SVHN, CINIC10, FASHION_MNIST, MNIST, IDX, FOLDER, NPZ)
SOURCES: dict[str, Source] = {source.name: source for source in _KNOWN}


def find(name: str) -> Source:
    """The source with this name; ``folder:PATH``, ``npz:FILE`` and ``idx:FOLDER`` carry a path."""
    word, colon, path = name.partition(":")
    source = SOURCES.get(word)
    if source is None:
        raise ConfigError(f"unknown data set '{word}': {nearest(word, SOURCES)}")
    return source.at(path) if colon else source


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
    name: str, root: Path | str | None = None, *, image_size: int | None = None, flip: bool | None = None
) -> Dataset:
    """Read a data set from the data folder ``root`` (else PROXYFL_DATA, else the user's cache folder).

    ``image_size`` brings the images to that size, ``flip`` says whether mirrored images keep their class.
    """
    source = find(name)
    dataset = source.load(data_root(root), image_size=image_size)
    height, width = dataset.train.images.shape[-2:]
    if image_size is not None:
        dataset = dataset.resized(image_size)
    elif height != width:
        raise DataError(f"{name}: images are {height}×{width}; set data.image_size to make them square")
    return dataset if flip is None else replace(dataset, flip=flip)
