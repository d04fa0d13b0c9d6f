"""Images, vectors or texts without labels that somebody wants to know about: files, folders, patterns, npz
files and tables.
"""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.dataset import Split, resize
from proxyfl.data.files import memory_limit
from proxyfl.data.images import SUFFIXES, decode_all, survey, with_channels
from proxyfl.data.medical import split_slice, suffix_of
from proxyfl.data.numbers import is_vectors
from proxyfl.data.reader.arrays import Array, check_images, in_eight_bits, read_headers, samples_of
from proxyfl.data.reader.columns import read_rows, read_texts
from proxyfl.data.reader.tables import read_table
from proxyfl.data.texts import NUMBERS, pack, unpack

KEYS = ("images", "test_images", "x_test", "vectors", "X")
"""Arrays of an npz file that are looked for, in this order."""
TABLES = (".csv", ".parquet")
TEXT = ".txt"


@dataclass(frozen=True)
class Given:
    """Images or vectors as a model takes them, what each is called, and what was done to them."""

    names: tuple[str, ...]
    images: Tensor
    notes: tuple[str, ...] = ()


def images_key(keys: str) -> str:
    """What ``data.keys`` calls the array of images; empty where it does not name one."""
    roles = (part.partition("=") for part in keys.split(","))
    return next((name.strip() for role, _, name in roles if role.strip() == "images"), "")


def read_given(
    places: Sequence[str], channels: int, size: int, features: Sequence[str] = (), key: str = ""
) -> Given:
    """The images at some places, in the order given, at ``size`` × ``size``; where that is 0, the vectors of
    ``channels`` features, which in tables are found by their names; where both are 0, the texts. ``key`` is
    the array of an npz file that is looked for before the usual ones.
    """
    if (channels, size) == NUMBERS:
        names, found = zip(*(pair for place in places for pair in _texts(place, features)), strict=True)
        return Given(names, pack(found))
    parts = [_read(place, channels, size, features, key) for place in places]
    return Given(
        tuple(name for part in parts for name in part.names),
        torch.cat([part.images for part in parts]),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _read(place: str, channels: int, size: int, features: Sequence[str], key: str) -> Given:
    suffix = Path(place).suffix.lower()
    if suffix == ".npz":
        return _npz(Path(place), channels, size, (*filter(None, [key]), *KEYS))
    if size:
        return _files(place, channels, size)
    if suffix not in TABLES:
        raise DataError(
            f"{place}: the model takes vectors; give an npz file or a table ({', '.join(TABLES)})"
        )
    return _table(Path(place).expanduser(), channels, features)


def _texts(place: str, features: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, text) of each row of a table, or of the files that a place means."""
    file = Path(place).expanduser()
    if file.suffix.lower() in TABLES and file.is_file():
        table = read_table(file)
        rows = read_texts(table, column=features[0] if features else "")
        yield from zip(
            map(table.where, range(len(table))), unpack(torch.from_numpy(rows.vectors)), strict=True
        )
        return
    for path in _found(place, (TEXT,)):
        if path.suffix.lower() != TEXT:
            raise DataError(
                f"{path}: the model takes texts; give {TEXT} files or a table ({', '.join(TABLES)})"
            )
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path} cannot be read as text in UTF-8: {error}") from None
        if not text.strip():
            raise DataError(f"{path} is empty; leave it out")
        yield str(path), text


def _table(file: Path, channels: int, features: Sequence[str]) -> Given:
    if not file.is_file():
        raise DataError(f"{file} does not exist")
    table = read_table(file)
    rows = read_rows(table, features=features)
    _require_features(file, rows.vectors, channels)
    return Given(tuple(map(table.where, range(len(table)))), torch.from_numpy(rows.vectors), rows.notes)


def _require_features(file: Path, vectors: Array, channels: int) -> None:
    if vectors.shape[1] != channels:
        raise DataError(
            f"{file}: its vectors have {vectors.shape[1]:,} features, but the model takes {channels:,}"
        )


def _files(place: str, channels: int, size: int) -> Given:
    files = _found(place, SUFFIXES)
    seen = survey(files)
    images, sound, note = decode_all(seen, channels, size, "reading", leave_out=True)
    damaged = f"{len(seen.faults):,} of {len(files):,} images cannot be read and are left out: {seen.named}"
    read = list(itertools.compress(files, sound))
    other = sum(seen.sizes[file] != (size, size) for file in read)
    notes = _notes(other, len(read), size, note, damaged if seen.faults else "")
    return Given(tuple(map(str, read)), torch.from_numpy(images), notes)


def _notes(other: int, total: int, size: int, *more: str) -> tuple[str, ...]:
    which = "the image is" if total == 1 else f"{other:,} of {total:,} images are"
    resized = f"{which} resized to the model's {size} × {size} pixels"
    return tuple(filter(None, (resized if other else "", *more)))


def _found(place: str, suffixes: Iterable[str]) -> list[Path]:
    """A file or a slice of one, those of a kind in a folder and in the folders in it, or those that a pattern
    fits.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        files = [file for file in path.rglob("*") if suffix_of(file) in suffixes and file.is_file()]
        if not files:
            what = "texts" if TEXT in suffixes else "images"
            raise DataError(f"there are no {what} in {place}; known are {', '.join(sorted(suffixes))}")
        return sorted(files)
    if split_slice(path)[0].is_file() or path.is_file():
        return [path]
    fits = Path(path.anchor).glob(str(path.relative_to(path.anchor))) if path.name else ()
    matching = sorted(file for file in fits if file.is_file())
    if matching:
        return matching
    raise DataError(f"{place} is not a file" if path.exists() else f"{place} does not exist")


def _npz(file: Path, channels: int, size: int, keys: Sequence[str] = KEYS) -> Given:
    try:
        headers = read_headers(file.expanduser())
        key = next((name for name in keys if name in headers), None)
        if key is None:
            held = ", ".join(sorted(headers)) or "nothing"
            raise ValueError(f"it holds {held}, expected {keys[0]}; name the array with --keys images=NAME")
        shape, dtype = headers[key]
        check_images(file, key, shape, dtype)
        bytes_ = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if bytes_ > memory_limit():
            raise ValueError(f"it holds {in_words(bytes_)}, too much for this machine's memory")
        with np.load(file.expanduser(), allow_pickle=False) as content:
            read = content[f"{key}.npy"]
        to_bytes, note = in_eight_bits(f"{file}: {key}", [read])
        array = samples_of(file, key, read, to_bytes)
    except FileNotFoundError:
        raise DataError(f"{file} does not exist") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read ({error}); replace it") from None
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    names = tuple(f"{file}[{k}]" for k in range(len(array)))
    if is_vectors(array) != (not size):
        theirs, ours = ("vectors", "images") if size else ("images", "vectors")
        raise DataError(f"{file} holds {theirs}, but the model takes {ours}")
    if not size:
        _require_features(file, array, channels)
        return Given(names, torch.from_numpy(array))
    images = torch.from_numpy(with_channels(array, channels))
    fits = images.shape[-2:] == (size, size)
    if not fits:
        images = resize(Split(images, torch.zeros(len(images), dtype=torch.int64)), size).images
    return Given(names, images, _notes(0 if fits else len(images), len(images), size, note))
