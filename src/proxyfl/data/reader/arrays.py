"""Arrays in one .npz file: images (uint8) or vectors, labels, and where there are some names of classes and
clients.

Nothing is trusted: pickled members are refused, and sizes are read from the headers before any memory is
given. A label of -1 means that an image has none; where an array of labels is missing, no image has one.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.arrays import read_header
from proxyfl.data.files import memory_limit
from proxyfl.data.numbers import KINDS, is_vectors, numbers
from proxyfl.data.reader.listing import NO_LABEL, SPLITS, parse_keys

Array: TypeAlias = np.ndarray[Any, Any]
Headers: TypeAlias = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

NAMINGS: tuple[dict[str, tuple[str, str]], ...] = (
    {split: (f"x_{split}", f"y_{split}") for split in SPLITS},
    {split: (f"{split}_images", f"{split}_labels") for split in SPLITS},
    {"train": ("images", "labels")},
    {"train": ("vectors", "labels")},
    {"train": ("X", "y")},
)
"""The names of images or vectors and labels of each split: Keras's, MedMNIST's, and those of one set."""

ROLES = (
    *("images", "labels", "val_images", "val_labels", "test_images", "test_labels"),
    *("clients", "classes"),
)
"""What ``data.keys`` may name."""


@dataclass(frozen=True)
class Arrays:
    """What a file holds: images (N, C, H, W) or vectors (N, d), and labels (-1: none); by split."""

    parts: dict[str, tuple[Array, Array]]
    classes: tuple[str, ...] | None = None
    clients: Array | None = None
    """The client of each training image, as text."""
    features: tuple[str, ...] = ()
    """The names of a vector's features, where the file has some."""


def read_headers(file: Path) -> Headers:
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


def naming(file: Path, headers: Mapping[str, Any], keys: str = "") -> dict[str, tuple[str, str]]:
    """The names of images and labels of each split that the file has."""
    given = parse_keys(keys, ROLES)
    for role, name in given.items():
        if name not in headers:
            raise DataError(f"{file} has no array '{name}' ({role} in data.keys); {_holds(headers)}")
    if "images" in given:
        prefixes = {"train": "", "val": "val_", "test": "test_"}
        found = {
            split: (given[f"{prefix}images"], given.get(f"{prefix}labels", ""))
            for split, prefix in prefixes.items()
            if f"{prefix}images" in given
        }
    else:
        found = next(
            (
                {split: pair for split, pair in names.items() if pair[0] in headers}
                for names in NAMINGS
                if names["train"][0] in headers or names.get("test", ("",))[0] in headers
            ),
            {},
        )
    if not found:
        wanted = "images and labels, x_train and y_train, or train_images and train_labels"
        raise DataError(f"{file}: {_holds(headers)}, expected {wanted}")
    return found


def _holds(headers: Mapping[str, Any]) -> str:
    return f"it holds {', '.join(sorted(headers))[:300] or 'nothing'}"


def read_arrays(file: Path, keys: str = "") -> Arrays:
    """Everything that is meant to be read. :class:`ValueError` where the file itself is damaged."""
    headers = read_headers(file)
    found = naming(file, headers, keys)
    given = parse_keys(keys, ROLES)
    extra = {role: given.get(role, role) for role in ("clients", "classes")}
    wanted = {*(name for pair in found.values() for name in pair), *extra.values()} & set(headers)
    size = sum(math.prod(headers[name][0]) * headers[name][1].itemsize for name in wanted)
    if size > memory_limit():
        raise DataError(f"{file} holds {in_words(size)}, too much for this machine's memory")
    for images, labels in found.values():
        check_images(file, images, *headers[images])
        if labels in headers:
            check_labels(file, labels, *headers[labels])
    if extra["classes"] in headers and headers[extra["classes"]][1].kind != "U":
        raise DataError(f"{file}: {extra['classes']} is {headers[extra['classes']][1]}, expected names")
    if extra["clients"] in headers and headers[extra["clients"]][1].kind not in "Uui":
        kind = headers[extra["clients"]][1]
        raise DataError(f"{file}: {extra['clients']} is {kind}, expected names or whole numbers")
    with np.load(file, allow_pickle=False) as content:
        # by their full names: a member without ".npy" would be preferred, and its header was not looked at
        loaded = {name: content[f"{name}.npy"] for name in wanted}
    parts = {split: _part(file, loaded, *names) for split, names in found.items()}
    names, clients = loaded.get(extra["classes"]), loaded.get(extra["clients"])
    if clients is not None and len(clients.reshape(-1)) != len(parts.get("train", ([],))[0]):
        raise DataError(f"{file}: {extra['clients']} needs one entry for each training image")
    return Arrays(
        parts,
        None if names is None else tuple(map(str, names.reshape(-1).tolist())),
        None if clients is None else clients.reshape(-1).astype(str),
    )


def _part(file: Path, loaded: Mapping[str, Array], image_key: str, label_key: str) -> tuple[Array, Array]:
    images = samples_of(file, image_key, loaded[image_key])
    labels = loaded.get(label_key)
    if labels is None:
        return images, np.full(len(images), NO_LABEL)
    labels = labels.reshape(-1)
    # Through the widest signed type a huge unsigned label cannot turn into a valid one.
    if labels.dtype.kind == "u" and labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{file}: a label is {int(labels.max())}")
    if len(labels) != len(images):
        raise DataError(f"{file}: {len(images)} images in {image_key} but {len(labels)} labels")
    return images, labels.astype(np.int64)


def check_images(file: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise where an array can be neither images nor vectors."""
    if len(shape) == 2 and dtype.kind in KINDS and 0 not in shape:
        return
    if dtype != np.uint8:
        raise DataError(f"{file}: {name} is {dtype}, expected uint8 from 0 to 255")
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or 0 in shape:
        raise DataError(
            f"{file}: {name} has shape {shape}, expected (N, H, W) or (N, H, W, 3), or (N, d) for vectors"
        )


def check_labels(file: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise where an array cannot be one label for each image."""
    if dtype.kind not in "ui":
        raise DataError(f"{file}: {name} is {dtype}, expected whole numbers")
    if len(shape) == 2 and shape[1] > 1:
        raise DataError(
            f"{file}: {name} has {shape[1]} labels for each image, expected one (several are not read)"
        )
    if len(shape) not in (1, 2) or 0 in shape:
        raise DataError(f"{file}: {name} has shape {shape}, expected (N,) or (N, 1)")


def samples_of(file: Path, name: str, array: Array) -> Array:
    """Images with their channels first, or vectors as float32."""
    return numbers(array, f"{file}: {name}") if is_vectors(array) else channels_first(array)


def channels_first(images: Array) -> Array:
    """Images as (N, channels, height, width)."""
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
