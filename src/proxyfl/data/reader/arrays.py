"""Arrays in one .npz file: images or vectors, labels, and where there are some names of classes and clients.

Nothing is trusted: pickled members are refused, and sizes are read from the headers before any memory is
given. A label of -1, nan or no letters means that an image has none; where an array of labels is missing, no
image has one.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.arrays import read_header
from proxyfl.data.files import memory_limit
from proxyfl.data.images import bits_for
from proxyfl.data.numbers import KINDS, is_vectors, numbers
from proxyfl.data.reader.listing import NO_LABEL, SPLITS, as_one_error, in_order, parse_keys

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
    named: bool = False
    """Whether labels are names: then the order of the classes says nothing."""
    notes: tuple[str, ...] = ()


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
                raise ValueError(
                    f"{member.filename} does not contain what its header declares, {dtype} {shape}"
                )
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
        wanted = (
            "images and labels, x_train and y_train, or train_images and train_labels (of vectors also "
            "vectors and labels, or X and y)"
        )
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
    if faults := _faults(file, headers, found, extra):
        raise as_one_error(faults)
    with np.load(file, allow_pickle=False) as content:
        # by their full names: a member without ".npy" would be preferred, and its header was not looked at
        loaded = {name: content[f"{name}.npy"] for name in wanted}
    given_names, clients = loaded.get(extra["classes"]), loaded.get(extra["clients"])
    classes = None if given_names is None else tuple(map(str, given_names.reshape(-1).tolist()))
    labels = [loaded[name] for _, name in found.values() if name in loaded]
    named = any(array.dtype.kind == "U" for array in labels)
    if named and classes is None:
        classes = in_order(str(label).strip() for array in labels for label in array.reshape(-1).tolist())
        classes = tuple(name for name in classes if name)
    to_bytes, note = in_eight_bits(str(file), [loaded[name] for name, _ in found.values()])
    parts = {split: _part(file, loaded, names, classes, to_bytes) for split, names in found.items()}
    if clients is not None and len(clients.reshape(-1)) != len(parts.get("train", ([],))[0]):
        raise DataError(f"{file}: {extra['clients']} needs one entry for each training image")
    owners = None if clients is None else clients.reshape(-1).astype(str)
    return Arrays(parts, classes, owners, named=named, notes=(note,) if note else ())


def _faults(
    file: Path, headers: Headers, found: Mapping[str, tuple[str, str]], extra: Mapping[str, str]
) -> list[str]:
    """All that the headers show to be wrong."""
    faults = []
    for name, check in (
        pair for images, labels in found.values() for pair in ((images, check_images), (labels, check_labels))
    ):
        try:
            if name in headers:
                check(file, name, *headers[name])
        except DataError as fault:
            faults.append(str(fault))
    for role, kinds, wanted in (("classes", "U", "names"), ("clients", "Uui", "names or whole numbers")):
        name = extra[role]
        if name in headers and headers[name][1].kind not in kinds:
            faults.append(f"{file}: {name} is {headers[name][1]}, expected {wanted}")
    return faults


def _part(
    file: Path,
    loaded: Mapping[str, Array],
    keys: tuple[str, str],
    classes: tuple[str, ...] | None,
    to_bytes: Callable[[Array], Array],
) -> tuple[Array, Array]:
    images = samples_of(file, keys[0], loaded[keys[0]], to_bytes)
    if keys[1] not in loaded:
        return images, np.full(len(images), NO_LABEL)
    labels = _numbered(f"{file}: {keys[1]}", loaded[keys[1]].reshape(-1), classes)
    if len(labels) != len(images):
        raise DataError(f"{file}: {len(images)} images in {keys[0]} but {len(labels)} labels")
    return images, labels


def _numbered(where: str, labels: Array, classes: tuple[str, ...] | None) -> Array:
    """Labels as numbers of classes, -1 where there is none: whole numbers, those with nan, or names."""
    if labels.dtype.kind == "U":
        place = {name: number for number, name in enumerate(classes or ())} | {"": NO_LABEL}
        names = [str(label).strip() for label in labels.tolist()]
        strange = next((name for name in names if name not in place), None)
        if strange is not None:
            raise DataError(f"{where}: '{strange}' is not one of the names in the array of classes")
        return np.array([place[name] for name in names], np.int64)
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), NO_LABEL, labels)
        broken = labels[~(np.isfinite(labels) & (labels == np.floor(labels)))]
        if len(broken):
            raise DataError(f"{where} holds {broken[0]:g}; give whole numbers, and -1 or nan for no label")
    # Through the widest signed type a huge label cannot turn into a valid one.
    if labels.size and labels.dtype.kind in "uf" and float(labels.max()) >= 2.0**63:
        raise DataError(f"{where}: a label is {labels.max():.0f}")
    return labels.astype(np.int64)


def in_eight_bits(where: str, arrays: Sequence[Array]) -> tuple[Callable[[Array], Array], str]:
    """How the images among ``arrays`` become uint8, all of them alike, and a note on that.

    Sixteen bits are shifted by as many as the largest grey level leaves empty; other numbers go from 0 to
    255, or from 0 to 1.
    """
    others = [array for array in arrays if not is_vectors(array) and array.dtype != np.uint8]
    if not others:
        return np.asarray, ""
    low, high = min(float(array.min()) for array in others), max(float(array.max()) for array in others)
    if all(array.dtype == np.uint16 for array in others):
        bits = bits_for(int(high))
        note = f"16-bit images with grey levels up to {int(high):,} are read as {bits} bits"
        return lambda array: _each(array, lambda part: part >> (bits - 8)), note
    if not (low >= 0 and high <= 255):
        raise DataError(
            f"{where}: image values range from {low:g} to {high:g}, expected 0 to 255 or "
            "0 to 1; save images before they are normalised"
        )
    top = 1 if high <= 1 else 255
    note = f"images of type {others[0].dtype} are read as grey levels from 0 to {top}"
    return lambda array: _each(array, lambda part: np.rint(part * (255 / top))), note


def _each(array: Array, change: Callable[[Array], Array], rows: int = 1024) -> Array:
    """``change`` some rows at a time: all at once they would need their memory a second time."""
    if array.dtype == np.uint8:
        return array
    changed = np.empty(array.shape, np.uint8)
    for start in range(0, len(array), rows):
        changed[start : start + rows] = change(array[start : start + rows])
    return changed


def check_images(file: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise where an array can be neither images nor vectors."""
    if len(shape) == 2 and dtype.kind in KINDS and 0 not in shape:
        return
    if dtype.kind not in KINDS:
        raise DataError(f"{file}: {name} is {dtype}, expected numbers: uint8 from 0 to 255")
    colours = {shape[1], shape[3]} & {1, 3} if len(shape) == 4 else {1}
    if len(shape) not in (3, 4) or not colours or 0 in shape:
        raise DataError(
            f"{file}: {name} has shape {shape}, expected (N, H, W) or (N, H, W, 3), or (N, d) for vectors"
        )


def check_labels(file: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise where an array cannot be one label for each image."""
    if dtype.kind not in "uifbU":
        raise DataError(f"{file}: {name} is {dtype}, expected whole numbers or names")
    if len(shape) == 2 and shape[1] > 1:
        raise DataError(
            f"{file}: {name} has {shape[1]} labels for each image, expected one (several are not read)"
        )
    if len(shape) not in (1, 2) or 0 in shape:
        raise DataError(f"{file}: {name} has shape {shape}, expected (N,) or (N, 1)")


def samples_of(file: Path, name: str, array: Array, to_bytes: Callable[[Array], Array]) -> Array:
    """Images as uint8 with their channels first, or vectors as float32."""
    if is_vectors(array):
        return numbers(array, f"{file}: {name}")
    return channels_first(to_bytes(array))


def channels_first(images: Array) -> Array:
    """Images as (N, channels, height, width)."""
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    if images.shape[3] not in (1, 3):
        return np.ascontiguousarray(images)  # as torch has them
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
