"""People's own data in one .npz file: ``x_train, y_train, x_test, y_test``, or MedMNIST's names.

Images are uint8, N×H×W or N×H×W×3; labels are whole numbers, one for each image. MedMNIST's validation
split is left alone. No file is trusted: pickled members are refused, and sizes are read from the headers
before any memory is given. Images are not mirrored, since a mirrored digit or organ may be another class.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl.data.archives import FAULTS
from proxyfl.data.arrays import read_header
from proxyfl.data.dataset import Dataset
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.sources.base import Array, Found, Source

NAMINGS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)


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
        except FAULTS:
            return Found(places, file.parent, (file,))
        return Found(places, file.parent, (file,), counts)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if found.folder is None:
            raise self.missing(root, found, "the .npz file")
        file = found.files[0]
        try:
            parts = _read(file)
        except ValueError as error:
            raise self.damaged(root, file, str(error)) from None
        except FAULTS as error:
            raise self.damaged(root, file, f"it cannot be read ({error})") from None
        return self.deliver(parts[0], parts[1])


def read_headers(file: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array in the file, from the headers alone, checked against the real sizes."""
    headers = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                shape, dtype = read_header(stream, member.filename)
                header = stream.tell()
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
        check_images(name, *headers[name])
    for name in names[1::2]:
        check_labels(name, *headers[name])
    with np.load(file, allow_pickle=False) as content:
        # by their full names: a member without ".npy" would be preferred, and its header was not looked at
        images, labels, test_images, test_labels = (content[f"{name}.npy"] for name in names)
    return (
        (channels_first(images), labels.reshape(-1)),
        (channels_first(test_images), test_labels.reshape(-1)),
    )


def check_images(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise :class:`ValueError` where an array cannot be images."""
    if dtype != np.uint8:
        raise ValueError(f"{name} is {dtype}, expected uint8 from 0 to 255")
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or 0 in shape:
        raise ValueError(f"{name} has shape {shape}, expected (N, H, W) or (N, H, W, 3)")


def check_labels(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise :class:`ValueError` where an array cannot be one label for each image."""
    if dtype.kind not in "ui":
        raise ValueError(f"{name} is {dtype}, expected whole numbers")
    if len(shape) == 2 and shape[1] > 1:
        raise ValueError(f"{name} has {shape[1]} labels for each image, expected one (several are not read)")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name} has shape {shape}, expected (N,) or (N, 1)")


def channels_first(images: Array) -> Array:
    """Images as (N, channels, height, width)."""
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


NPZ = Npz(name="npz", title="Your own arrays, MedMNIST's too: npz:FILE", takes_path=True, flip=False)
