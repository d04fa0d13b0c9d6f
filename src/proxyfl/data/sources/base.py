"""What every data source has: a name, facts about the full set, a place to look and a way to read."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.files import Checksum, RemoteFile
from proxyfl.data.numbers import is_vectors, statistics
from proxyfl.data.texts import is_texts

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset, Split

Array: TypeAlias = np.ndarray[Any, Any]

OWN = ("folder", "npz", "table")
"""The sources of people's own data."""
MAX_CLASSES = 65536
MIN_STD = 1e-3  # images of one colour must not divide by zero


@dataclass(frozen=True)
class Found:
    """Where a source looked and what it found there, without reading the images."""

    looked: tuple[Path, ...]
    folder: Path | None = None
    files: tuple[Path, ...] = ()
    counts: tuple[int, int] | None = None
    note: str = ""

    @property
    def present(self) -> bool:
        return self.folder is not None


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """One data set. ``None`` for classes, sizes, mean or std means: found in the data.

    ``files`` are what ``fetch`` downloads, ``alternatives`` archives that do as well where people already
    have them, ``checksums`` those of the files that are read, by file name. ``path`` is where a person's own
    data lies, for the sources that take one (``folder:PATH``); ``keys`` are the names of the arrays or
    columns in it where they are not the usual ones.
    """

    name: str
    title: str
    classes: tuple[str, ...] | None = None
    full_size: int | None = None
    full_test: int | None = None
    flip: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    files: tuple[RemoteFile, ...] = ()
    alternatives: tuple[RemoteFile, ...] = ()
    checksums: Mapping[str, tuple[Checksum, ...]] = field(default_factory=dict)
    takes_path: bool = False
    path: str | None = None
    takes_keys: bool = False
    keys: str = ""

    @abstractmethod
    def locate(self, root: Path) -> Found:
        """Where the data is, and how much of it, as far as that shows without reading it."""

    @abstractmethod
    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        """Read the data. Sources whose images come in many sizes bring them to ``image_size``."""

    def at(self, path: str) -> Self:
        """This source for a person's own data at ``path``."""
        if not self.takes_path:
            raise ConfigError(f"data set '{self.name}' takes no path; give its folder as --data-root")
        if not path:
            raise ConfigError(f"'{self.name}:' needs a path, as in {self.name}:PATH")
        return replace(self, path=path)

    def reading(self, keys: str) -> Self:
        """This source with other names of arrays or columns (``data.keys``)."""
        if keys and not self.takes_keys:
            raise ConfigError(
                f"data.keys names arrays of npz: or columns of table:; '{self.name}' has neither"
            )
        return replace(self, keys=keys)

    def places(self, root: Path) -> tuple[Path, ...]:
        """Where ``path`` may be: as it stands when absolute, else under the data root, else under the cwd."""
        if self.path is None:
            raise ConfigError(f"data set '{self.name}' needs a path: {self.name}:PATH")
        given = Path(self.path).expanduser()
        return (given,) if given.is_absolute() else (root / given, Path.cwd() / given)

    def cure(self, root: Path) -> str:
        """How to get the data, for the end of an error message."""
        if self.files:
            return f"get it with: proxyfl data fetch {self.name} --data-root {root}"
        return f"give the path as {self.name}:PATH" if self.takes_path else ""

    def waiting_archive(self, root: Path) -> str:
        """Says so when an archive of this data set was downloaded but not unpacked."""
        archives = [file.path for file in (*self.files, *self.alternatives) if file.unpacks_to]
        here = next((path for path in archives if (root / path).is_file()), None)
        return f"{here} exists but is not unpacked: fetch unpacks it" if here else ""

    def missing(self, root: Path, found: Found, expected: str) -> DataError:
        looked = ", ".join(str(place) for place in found.looked)
        note = f"{found.note}; " if found.note else ""
        if self.path and self.name in OWN and (hint := meant(self.path)):
            return DataError(f"{self.name}: {self.path} is not {expected.replace('the ', 'a ', 1)}; {hint}")
        return DataError(
            f"{self.name}: {expected} was not found; looked in {looked}; {note}{self.cure(root)}"
        )

    def damaged(self, root: Path, file: Path, fault: str) -> DataError:
        cure = f"move it away and {self.cure(root)}" if self.files else "replace it"
        return DataError(f"{self.name}: {file} is damaged: {fault}; {cure}")

    def deliver(
        self,
        train: tuple[Array, Array],
        test: tuple[Array, Array],
        *,
        classes: tuple[str, ...] | None = None,
        note: str = "",
        validation: tuple[Array, Array] | None = None,
        clients: tuple[Array, tuple[str, ...]] | None = None,
        features: tuple[str, ...] = (),
        notes: Sequence[str] = (),
    ) -> Dataset:
        """Check what was read and dress it as a Dataset: images (N, C, H, W) or vectors (N, d), labels (N,).

        People's own training images may be without a label (-1), and belong to ``clients``: the number of
        each one's, and their names.
        """
        import torch

        from proxyfl.data.dataset import Dataset

        names = classes or self.classes or count_classes(self.name, train[1], test[1])
        splits = [
            _split(self.name, "train", *train, len(names), unknown=self.takes_path),
            _split(self.name, "test", *test, len(names)),
        ]
        if validation is not None and len(validation[1]):
            splits.append(_split(self.name, "validation", *validation, len(names)))
        if len({split.images.shape[1:] for split in splits}) > 1:
            shapes = " and ".join(sorted({str(tuple(split.images.shape[1:])) for split in splits}))
            raise DataError(f"{self.name}: training and test {splits[0].called} differ in shape: {shapes}")
        mean, std = self.mean, self.std
        if mean is None or std is None:
            mean, std = sample_statistics(train[0])
        return Dataset(
            name=self.name,
            train=splits[0],
            test=splits[1],
            classes=names,
            mean=mean,
            std=std,
            flip=self.flip and splits[0].called == "images",
            full_size=self.full_size or len(splits[0]),
            partial=self.shortfall(len(splits[0]), len(splits[1]), note),
            validation=splits[2] if len(splits) > 2 else None,
            holders=None if clients is None else torch.from_numpy(clients[0]),
            clients=() if clients is None else clients[1],
            features=features,
            notes=tuple(notes),
        )

    def shortfall(self, train: int, test: int, note: str = "") -> str:
        """What is missing of the full set, in words; empty when nothing is."""
        parts = []
        if self.full_size and train < self.full_size:
            parts.append(f"{train:,} of {self.full_size:,} training images")
        if self.full_test and test < self.full_test:
            parts.append(f"{test:,} of {self.full_test:,} test images")
        words = " and ".join(parts)
        return f"{words} ({note})" if words and note else words


def _split(
    name: str, word: str, images: Array, labels: Array, classes: int, *, unknown: bool = False
) -> Split:
    import torch

    from proxyfl.data.dataset import Split

    fits = is_texts(images) or (images.dtype == np.uint8 and images.ndim == 4 and images.shape[1] in (1, 3))
    if not fits and not (images.dtype == np.float32 and is_vectors(images)):
        facts = f"{images.dtype} of shape {images.shape}"
        raise DataError(f"{name}: {word} images are {facts}, expected uint8 (N, 1 or 3, H, W)")
    if len(images) == 0:
        raise DataError(f"{name}: there are no {word} images")
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataError(f"{name}: {len(images)} {word} images but labels of shape {labels.shape}")
    lowest = -int(unknown)
    if labels.min() < lowest or labels.max() >= classes:
        worst = labels.min() if labels.min() < lowest else labels.max()
        raise DataError(f"{name}: a {word} label is {worst}, expected 0 to {classes - 1}")
    if labels.max() < 0:
        raise DataError(f"{name}: no {word} image has a label; label a few images of every class")
    owned = np.require(images, requirements=["C", "W"])  # torch wants memory that may be written
    return Split(torch.from_numpy(owned), torch.from_numpy(labels.astype(np.int64)))


def meant(path: str) -> str:
    """A hint for whoever gave a path: how own data at that place is named. Empty where nothing is."""
    kinds, kind = {".npz": "npz", ".npy": "npz", ".csv": "table", ".parquet": "table"}, ""
    with contextlib.suppress(OSError, RuntimeError):  # a name that no file can have, a home of nobody
        place = Path(path).expanduser()
        kind = "folder" if place.is_dir() else kinds.get(place.suffix.lower(), "") if place.is_file() else ""
    return f"your own data there is called {kind}:{path}" if kind else ""


def count_classes(name: str, *labels: Array) -> tuple[str, ...]:
    """The classes 0, 1, … up to the largest label, named by their numbers."""
    highest = max((int(part.max()) for part in labels if part.size), default=-1)
    if highest >= MAX_CLASSES:
        raise DataError(f"{name}: a label is {highest}; at most {MAX_CLASSES:,} classes can be read")
    return tuple(str(label) for label in range(highest + 1))


def sample_statistics(samples: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of images or feature of vectors; texts have none."""
    if is_texts(samples):
        return (), ()
    return statistics(samples) if is_vectors(samples) else channel_statistics(samples)


def channel_statistics(images: Array, chunk: int = 4096) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel on the scale 0 to 1, from exact counts of grey levels."""
    levels = np.arange(256, dtype=np.float64) / 255
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(images), chunk):
        part = images[start : start + chunk]
        for channel in range(images.shape[1]):
            counts[channel] += np.bincount(part[:, channel].reshape(-1), minlength=256)
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(max(value, MIN_STD) for value in std.tolist())


def hold_out(labels: Array, per_class: Sequence[int]) -> Array:
    """A fixed test split: True for ``per_class[c]`` images of each class c, the same on every machine.

    For each class in turn, its images are shuffled by numpy's legacy generator with seed 0, whose stream
    never changes, and the first ones are held out.
    """
    random = np.random.RandomState(0)
    mask = np.zeros(len(labels), bool)
    for label, count in enumerate(per_class):
        members = np.flatnonzero(labels == label)
        mask[random.permutation(members)[:count]] = True
    return mask


def first_folder(places: Sequence[Path], *entries: str) -> Path | None:
    """The first of ``places`` that holds every one of ``entries``."""
    return next((place for place in places if all((place / entry).exists() for entry in entries)), None)
