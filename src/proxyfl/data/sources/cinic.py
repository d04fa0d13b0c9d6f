"""CINIC-10: folders of PNG files, read once and kept as memory-mapped arrays.

L. Darlow et al., CINIC-10 is not ImageNet or CIFAR-10, arXiv:1810.03505, 2018.

The validation split is left alone. The cache lies beside the images, or in the user's cache folder where
that place cannot be written. Its name carries a fingerprint of every file's name, size and time, so a
changed folder is read again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.data.arrays import read_header
from proxyfl.data.files import Checksum, RemoteFile, progress, user_cache
from proxyfl.data.images import decode, list_folder
from proxyfl.data.sources.base import Array, Found, Source, first_folder

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("train", "test")
SIZE = 32
CACHE = ".proxyfl-cache"
KEY = re.compile(r"[0-9a-f]{16}")
"""How the name of a cache looks. Nothing else in its place is ours to remove."""

Listed: TypeAlias = dict[str, tuple[list[Path], Array]]
Arrays: TypeAlias = dict[str, tuple[Array, Array]]


@dataclass(frozen=True, kw_only=True)
class Cinic(Source):
    """``train/CLASS/*.png`` and ``test/CLASS/*.png``; a class or images may be missing, which is reported."""

    def locate(self, root: Path) -> Found:
        found = self._folder(root)
        if found.folder is None:
            return found
        train, test = (len(list_split(found.folder, split)[0]) for split in SPLITS)
        return replace(found, counts=(train, test))

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self._folder(root)
        if found.folder is None:
            raise self.missing(root, found, "train/CLASS and test/CLASS")
        listed = {split: list_split(found.folder, split) for split in SPLITS}
        for split, (files, _) in listed.items():
            if not files:
                raise DataError(f"{self.name}: no images in {found.folder / split}; {self.cure(root)}")
        arrays = cached_arrays(found.folder, listed)
        return self.deliver(arrays["train"], arrays["test"])

    def _folder(self, root: Path) -> Found:
        places = (root / "cinic-10", root / "CINIC-10", root / "cinic10", root)
        folder = first_folder(places, *(f"{split}/{CLASSES[0]}" for split in SPLITS))
        return Found(places, folder, note="" if folder else self.waiting_archive(root))


def list_split(folder: Path, split: str) -> tuple[list[Path], Array]:
    """The PNG files of a split, class by class in alphabetical order, and their labels."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(CLASSES):
        if (folder / split / name).is_dir():
            images = [file for file in list_folder(folder / split / name, folder)[1] if file.suffix == ".png"]
            files += images
            labels += [label] * len(images)
    return files, np.array(labels, np.int64)


def fingerprint(folder: Path, listed: Listed) -> str:
    """Changes when any file is added, removed, renamed or written to."""
    state = hashlib.sha256()
    for files, _ in listed.values():
        for file in files:
            facts = file.stat()
            state.update(f"{file.relative_to(folder)}|{facts.st_size}|{facts.st_mtime_ns}\n".encode())
    return state.hexdigest()[:16]


def cached_arrays(folder: Path, listed: Listed) -> Arrays:
    """Images and labels of each split, memory-mapped; made on the first call, which takes a while."""
    key = fingerprint(folder, listed)
    homes = cache_homes(folder)
    for home in homes:
        if not home.is_symlink() and (arrays := open_cache(home / key, listed)):
            return arrays
    for home in homes:
        aside = begin(home)
        if aside is None:
            continue
        try:
            for split, (files, _) in listed.items():
                write_images(aside / f"{split}.npy", split, files)
            clear(home / key)
            aside.rename(home / key)
        except OSError as error:
            raise DataError(f"cinic10: no cache can be written in {home} ({error}); make room") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        drop_others(home, key)
        if arrays := open_cache(home / key, listed):
            return arrays
    raise DataError(f"cinic10: no cache can be written in {' or '.join(map(str, homes))}; allow one of them")


def cache_homes(folder: Path) -> tuple[Path, Path]:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return folder / CACHE, user_cache() / "cinic10" / name


def begin(home: Path) -> Path | None:
    """A new folder to build the cache in; None where ``home`` cannot be written or is a link elsewhere."""
    if home.is_symlink():
        return None
    try:
        home.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".part-", dir=home))
    except OSError:
        return None


def clear(place: Path) -> None:
    """Remove what is in the place of a cache; of a link the link alone."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def drop_others(home: Path, key: str) -> None:
    """Caches of what the folder held before. Those being built by others, which are hidden, stay."""
    for other in home.iterdir():
        if other.name != key and KEY.fullmatch(other.name):
            shutil.rmtree(other, ignore_errors=True)


def write_images(target: Path, split: str, files: list[Path]) -> None:
    """Written piece by piece rather than through a map: a full disk is then an error, not a crash."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), 3, SIZE, SIZE)}
    with target.open("wb") as out, progress(f"cinic10: caching the {split} images", len(files)) as advance:
        np.lib.format.write_array_header_1_0(out, header)
        for file in files:
            pixels = decode(file, 3)
            if pixels.shape[1:] != (SIZE, SIZE):
                raise DataError(f"cinic10: {file} is {pixels.shape[2]}×{pixels.shape[1]}, expected 32×32")
            out.write(pixels.tobytes())
            advance(1)


def open_cache(cache: Path, listed: Listed) -> Arrays | None:
    """The arrays, or None where the cache is absent, damaged, or a link to what somebody else put there."""
    arrays: Arrays = {}
    for split, (files, labels) in listed.items():
        file, wanted = cache / f"{split}.npy", (len(files), 3, SIZE, SIZE)
        if cache.is_symlink() or file.is_symlink() or not file.is_file():
            return None
        try:
            with file.open("rb") as stream:  # looked at first: numpy would parse any Python literal
                shape, dtype = read_header(stream, file.name)
            if shape != wanted or dtype != np.uint8:
                return None
            # copy-on-write, because torch wants arrays that can be written; the file is never changed
            images = np.lib.format.open_memmap(file, mode="c")
        except (OSError, ValueError):
            return None
        arrays[split] = (images, labels)
    return arrays


CINIC10 = Cinic(
    name="cinic10",
    title="CINIC-10, 10 kinds of object 32×32 (Darlow et al. 2018)",
    classes=CLASSES,
    full_size=90000,
    full_test=90000,
    flip=True,
    mean=(0.4789, 0.4723, 0.4305),
    std=(0.2421, 0.2383, 0.2587),
    files=(
        RemoteFile(
            "CINIC-10.tar.gz",
            "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
            Checksum("md5", "6ee4d0c996905fe93221de577967a372"),
            "cinic-10",
        ),
    ),
)
