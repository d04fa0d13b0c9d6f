"""CIFAR-10 and CIFAR-100, in the original binary version and the original python version.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, 2009.

Folders are named as in the original archives. Where both versions are there, a complete one is preferred,
then the binary one. Training files may be missing as long as one of them and the test file are there, and
files may hold fewer images than the originals: the data set is then reported as partial.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxyfl.data import restricted_pickle
from proxyfl.data.files import Checksum, RemoteFile
from proxyfl.data.sources.base import Array, Found, Source

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

PIXELS = 3 * 32 * 32
MAX_IMAGES = 50000
ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Version:
    """One of the two original forms: its folder, its files and the archive they come in."""

    folder: str
    train: tuple[str, ...]
    test: str
    archive: RemoteFile
    binary: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.train, self.test)


@dataclass(frozen=True, kw_only=True)
class Cifar(Source):
    """``label_bytes`` precede the pixels of a binary record; the last of them is the label that counts."""

    versions: tuple[Version, Version]
    label_bytes: int
    label_key: str

    @property
    def record(self) -> int:
        return self.label_bytes + PIXELS

    def locate(self, root: Path) -> Found:
        chosen = self._choose(root)
        looked = tuple(root / version.folder for version in self.versions)
        if chosen is not None:
            version, folder = chosen
            here = [name for name in version.names if (folder / name).is_file()]
            counts = self._counts(folder, version, here) if version.binary else None
            note = ", ".join(name for name in version.names if name not in here)
            files = tuple(folder / name for name in here)
            return Found(looked, folder, files, counts, f"without {note}" if note else "")
        return Found(looked, note=self.waiting_archive(root))

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        chosen = self._choose(root)
        if chosen is None:
            raise self.missing(root, self.locate(root), self._expected(root))
        version, folder = chosen
        here = [name for name in version.train if (folder / name).is_file()]
        absent = ", ".join(name for name in version.train if name not in here)
        train = _join([self._read(version, root, folder / name) for name in here])
        test = self._read(version, root, folder / version.test)
        return self.deliver(train, test, note=f"without {absent}" if absent else "")

    def _choose(self, root: Path) -> tuple[Version, Path] | None:
        usable = []
        for version in self.versions:
            folder = root if root.name == version.folder else root / version.folder
            here = [name for name in version.train if (folder / name).is_file()]
            if here and (folder / version.test).is_file():
                usable.append((len(version.train) - len(here), version, folder))
        if not usable:
            return None
        _, version, folder = min(usable, key=lambda entry: entry[0])
        return version, folder

    def _expected(self, root: Path) -> str:
        """What to name in the error: the files that an incomplete folder lacks, else the folders."""
        for version in self.versions:
            folder = root / version.folder
            if folder.is_dir():
                lacking = [name for name in version.names if not (folder / name).is_file()]
                return f"{', '.join(lacking)} (in {folder})"
        return " or ".join(f"folder {version.folder}" for version in self.versions)

    def _counts(self, folder: Path, version: Version, here: list[str]) -> tuple[int, int]:
        sizes = {name: (folder / name).stat().st_size // self.record for name in here}
        test = sizes.pop(version.test, 0)
        return sum(sizes.values()), test

    def _read(self, version: Version, root: Path, file: Path) -> tuple[Array, Array]:
        try:
            images, labels = self._read_binary(file) if version.binary else self._read_python(file)
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", "") or str(error) or "there is not enough memory"
            raise self.damaged(root, file, f"it cannot be read ({reason})") from None
        except ValueError as error:
            raise self.damaged(root, file, str(error)) from None
        highest = len(self.classes or ()) - 1
        if labels.max() > highest:
            raise self.damaged(root, file, f"a label is {labels.max()}, expected 0 to {highest}")
        return images.reshape(-1, 3, 32, 32), labels

    def _read_binary(self, file: Path) -> tuple[Array, Array]:
        size = file.stat().st_size
        if size == 0 or size % self.record:
            raise ValueError(f"{size:,} bytes, expected a whole number of records of {self.record:,} bytes")
        if size // self.record > MAX_IMAGES:
            raise ValueError(f"{size // self.record:,} images, the full set has {MAX_IMAGES:,}")
        records = np.fromfile(file, np.uint8, size).reshape(-1, self.record)
        return records[:, self.label_bytes :], records[:, self.label_bytes - 1]

    def _read_python(self, file: Path) -> tuple[Array, Array]:
        batch = restricted_pickle.load(file)
        images, labels = batch.get("data"), batch.get(self.label_key)
        if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != PIXELS:
            raise ValueError(f"'data' is not an array of images with {PIXELS:,} bytes each")
        if not isinstance(labels, list) or not all(label in range(256) for label in labels):
            raise ValueError(f"'{self.label_key}' is not a list of labels")
        if len(labels) != len(images) or not labels:
            raise ValueError(f"{len(images):,} images but {len(labels):,} labels")
        return images, np.array(labels, np.uint8)


def _join(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _archive(name: str, md5: str, folder: str) -> RemoteFile:
    return RemoteFile(name, ADDRESS + name, Checksum("md5", md5, official=True), folder)


def _members(**values: str) -> dict[str, tuple[Checksum, ...]]:
    """The authors publish checksums of the archives; those of the files inside are in general use."""
    return {name.replace("__", "."): (Checksum("md5", value),) for name, value in values.items()}


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY_10 = Version(
    "cifar-10-batches-bin",
    tuple(f"{name}.bin" for name in _BATCHES),
    "test_batch.bin",
    _archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),
    binary=True,
)
_PYTHON_10 = Version(
    "cifar-10-batches-py",
    _BATCHES,
    "test_batch",
    _archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),
    binary=False,
)
_BINARY_100 = Version(
    "cifar-100-binary",
    ("train.bin",),
    "test.bin",
    _archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),
    binary=True,
)
_PYTHON_100 = Version(
    "cifar-100-python",
    ("train",),
    "test",
    _archive("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),
    binary=False,
)

CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10, 10 kinds of object 32×32 (Krizhevsky 2009)",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    full_size=50000,
    full_test=10000,
    flip=True,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
    files=(_BINARY_10.archive,),
    alternatives=(_PYTHON_10.archive,),
    checksums=_members(
        data_batch_1__bin="5dd7e06a14cb22eb9f671a540d1b7c25",
        data_batch_2__bin="5ea93a67294ea407fff1d09f752e9692",
        data_batch_3__bin="942cd6a4bcdd0dd3c604fbe906cb4421",
        data_batch_4__bin="ae636b3ba5c66a11e91e8cb52e771fcb",
        data_batch_5__bin="53f37980c15c3d472c316c40844f3f0d",
        test_batch__bin="803d5f7f4d78ea53de84dbe85f74fb6d",
        data_batch_1="c99cafc152244af753f735de768cd75f",
        data_batch_2="d4bba439e000b95fd0a9bffe97cbabec",
        data_batch_3="54ebc095f3ab1f0389bbae665268c751",
        data_batch_4="634d18415352ddfa80567beed471001a",
        data_batch_5="482c414d41f54cd18b22e5b47cb7c3cb",
        test_batch="40351d587109b95175f43aff81a1287e",
    ),
    versions=(_BINARY_10, _PYTHON_10),
    label_bytes=1,
    label_key="labels",
)

_FINE_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""

CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100, 100 kinds of object 32×32 (Krizhevsky 2009)",
    classes=tuple(_FINE_CLASSES.split()),
    full_size=50000,
    full_test=10000,
    flip=True,
    mean=(0.5071, 0.4867, 0.4408),
    std=(0.2675, 0.2565, 0.2761),
    files=(_BINARY_100.archive,),
    alternatives=(_PYTHON_100.archive,),
    checksums=_members(
        train__bin="6172c7755cfe09b2fe270c85cebc1b15",
        test__bin="4499cfba6c016c1be1438163640a0898",
        train="16019d7e3df5f24257cddd939b257f8d",
        test="f0ef6b0ae62326f3e7ffdfab6717acfc",
    ),
    versions=(_BINARY_100, _PYTHON_100),
    label_bytes=2,
    label_key="fine_labels",
)
