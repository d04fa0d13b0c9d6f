"""People's own data in one .npz file: ``x_train, y_train, x_test, y_test``, or MedMNIST's names.

Images are uint8, N×H×W or N×H×W×3; labels are whole numbers, one for each image. MedMNIST's validation
split is left alone. No file is trusted: pickled members are refused, and sizes are read from the headers
before any memory is given. Images are not mirrored, since a mirrored digit or organ may be another class.
"""

from __future__ import annotations

import math
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from proxyfl.data.archives import FAULTS
from proxyfl.data.dataset import Dataset
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.sources.base import Array, Found, Source

NAMINGS = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("train_images", "train_labels", "test_images", "test_labels"),
)
LENGTH_BYTES = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
"""How many bytes hold the length of the header, by the first eight of the file."""

LONGEST_HEADER = 10_000
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z][0-9]{0,9})', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:[0-9]{1,18}L?, ?)*(?:[0-9]{1,18}L?)?)\),? ?\} *\n?"
)
"""As numpy writes it for an array of plain numbers. Numpy's own reader would parse any Python literal."""


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
                shape, dtype = _header(stream, member.filename)
                header = stream.tell()
            if math.prod(shape) * dtype.itemsize + header != member.file_size:
                raise ValueError(f"{member.filename} does not hold what its header promises, {dtype} {shape}")
            headers[member.filename.removesuffix(".npy")] = (shape, dtype)
    return headers


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    bytes_of_length = LENGTH_BYTES.get(stream.read(8))
    if bytes_of_length is None:
        raise ValueError(f"{name} is no array of numpy's format 1 or 2")
    length = int.from_bytes(stream.read(bytes_of_length), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"{name} has a header of {length:,} bytes, at most {LONGEST_HEADER:,} are read")
    found = HEADER.fullmatch(stream.read(length))
    if found is None:
        raise ValueError(f"{name} has a header that numpy does not write for plain numbers")
    try:
        dtype = np.dtype(found[1].decode())
    except TypeError:
        raise ValueError(f"{name} has the unknown type {found[1].decode()}") from None
    if dtype.hasobject:
        raise ValueError(f"{name} is pickled, which is not read")
    return tuple(int(size) for size in re.findall(rb"[0-9]+", found[2])), dtype


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
        train = channels_first(content[names[0]]), content[names[1]].reshape(-1)
        test = channels_first(content[names[2]]), content[names[3]].reshape(-1)
    return train, test


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
