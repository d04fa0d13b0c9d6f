"""People's own data in one .npz file: ``x_train, y_train, x_test, y_test``, or MedMNIST's names.

Images are uint8, N×H×W or N×H×W×3; labels are whole numbers, one for each image. MedMNIST's validation
split is left alone. No file is trusted: pickled members are refused, and sizes are read from the headers
before any memory is given. Images are not mirrored, since a mirrored digit or organ may be another class.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl.data.dataset import Dataset
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.sources.base import Array, Found, Source

NAMINGS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True)
class Npz(Source):
    """One file, named as ``npz:FILE``."""

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            return Found(places)
        try:
            headers = read_headers(file)
            names = _naming(headers)
            counts = headers[names[0]][0][0], headers[names[2]][0][0]
        except (OSError, ValueError, IndexError, zipfile.BadZipFile, zlib.error):
            return Found(places, file.parent, (file,))
        return Found(places, file.parent, (file,), counts)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if found.folder is None:
            raise self.missing(root, found, "the .npz file")
        file = found.files[0]
        try:
            parts = _read(file)
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise self.damaged(root, file, f"it cannot be read ({error})") from None
        except ValueError as error:
            raise self.damaged(root, file, str(error)) from None
        return self.deliver(parts[0], parts[1])


def read_headers(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array in the file, from the headers alone, checked against the real sizes."""
    headers = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                if version not in READ_HEADER:
                    raise ValueError(f"{member.filename} has format version {version}")
                shape, _, dtype = READ_HEADER[version](stream)
                header = stream.tell()
            if dtype.hasobject:
                raise ValueError(f"{member.filename} is pickled, which is not read")
            if math.prod(shape) * dtype.itemsize + header != member.file_size:
                raise ValueError(f"{member.filename} does not hold what its header promises, {dtype} {shape}")
            headers[member.filename.removesuffix(".npy")] = (shape, dtype)
    return headers


def _naming(headers: dict[str, Any]) -> tuple[str, str, str, str]:
    for names in NAMINGS:
        if all(name in headers for name in names):
            return names
    wanted = " or ".join(", ".join(names) for names in NAMINGS)
    raise ValueError(f"it holds {', '.join(sorted(headers)) or 'nothing'}, expected {wanted}")


def _read(file: Path) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    headers = read_headers(file)
    names = _naming(headers)
    size = sum(math.prod(headers[name][0]) * headers[name][1].itemsize for name in names)
    if size > memory_limit():
        raise ValueError(f"it holds {in_words(size)}, too much for this machine's memory")
    for name in names[::2]:
        _check_images(name, *headers[name])
    for name in names[1::2]:
        _check_labels(name, *headers[name])
    with np.load(file, allow_pickle=False) as content:
        train = _channels_first(content[names[0]]), content[names[1]].reshape(-1)
        test = _channels_first(content[names[2]]), content[names[3]].reshape(-1)
    return train, test


def _check_images(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype != np.uint8:
        raise ValueError(f"{name} is {dtype}, expected uint8 from 0 to 255")
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or 0 in shape:
        raise ValueError(f"{name} has shape {shape}, expected (N, H, W) or (N, H, W, 3)")


def _check_labels(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "ui":
        raise ValueError(f"{name} is {dtype}, expected whole numbers")
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(f"{name} has {shape[1]} labels for each image, expected one (several are not read)")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name} has shape {shape}, expected (N,) or (N, 1)")


def _channels_first(images: Array) -> Array:
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


NPZ = Npz(name="npz", title="Your own arrays, MedMNIST's too: npz:FILE", takes_path=True, flip=False)
