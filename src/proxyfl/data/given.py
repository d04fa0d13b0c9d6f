"""Images without labels that somebody wants to know about: files, folders, patterns and npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.data.dataset import Split, resize
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.images import SUFFIXES, decode_all, survey
from proxyfl.data.reader.arrays import channels_first, check_images, read_headers

KEYS = ("images", "test_images", "x_test")
"""Arrays of an npz file that are looked for, in this order."""


@dataclass(frozen=True)
class Given:
    """Images as a model takes them, what each is called, and what was done to them."""

    names: tuple[str, ...]
    images: Tensor
    notes: tuple[str, ...] = ()


def read_given(places: Sequence[str], channels: int, size: int) -> Given:
    """The images at some places, in the order given, at ``size`` × ``size``."""
    parts = [
        _npz(Path(place), channels, size) if place.lower().endswith(".npz") else _files(place, channels, size)
        for place in places
    ]
    return Given(
        tuple(name for part in parts for name in part.names),
        torch.cat([part.images for part in parts]),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _files(place: str, channels: int, size: int) -> Given:
    files = _found(place)
    seen = survey(files)
    images, note = decode_all(seen, channels, size, "reading")
    other = sum(shape != (size, size) for shape in seen.sizes.values())
    return Given(tuple(map(str, files)), torch.from_numpy(images), _notes(other, len(files), size, note))


def _notes(other: int, total: int, size: int, *more: str) -> tuple[str, ...]:
    which = "the image is" if total == 1 else f"{other:,} of {total:,} images are"
    resized = f"{which} of another size than the model's {size} × {size} pixels and resized"
    return tuple(filter(None, (resized if other else "", *more)))


def _found(place: str) -> list[Path]:
    """A file, the images in a folder and in the folders in it, or those that a pattern fits."""
    path = Path(place).expanduser()
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]
        if not files:
            raise DataError(f"there are no images in {place}; known are {', '.join(sorted(SUFFIXES))}")
        return sorted(files)
    if path.is_file():
        return [path]
    fits = Path(path.anchor).glob(str(path.relative_to(path.anchor))) if path.name else ()
    matching = sorted(file for file in fits if file.is_file())
    if matching:
        return matching
    raise DataError(f"{place} is not a file" if path.exists() else f"{place} does not exist")


def _npz(file: Path, channels: int, size: int) -> Given:
    try:
        headers = read_headers(file.expanduser())
        key = next((name for name in KEYS if name in headers), None)
        if key is None:
            raise ValueError(f"it holds {', '.join(sorted(headers)) or 'nothing'}, expected {KEYS[0]}")
        shape, dtype = headers[key]
        check_images(file, key, shape, dtype)
        bytes_ = int(np.prod(shape, dtype=object))
        if bytes_ > memory_limit():
            raise ValueError(f"it holds {in_words(bytes_)}, too much for this machine's memory")
        with np.load(file.expanduser(), allow_pickle=False) as content:
            images = torch.from_numpy(channels_first(content[f"{key}.npy"]))
    except FileNotFoundError:
        raise DataError(f"{file} does not exist") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read ({error}); replace it") from None
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    if images.shape[1] != channels:
        kinds = {1: "grey", 3: "in colour"}
        theirs, ours = (kinds.get(count, f"of {count} channels") for count in (images.shape[1], channels))
        raise DataError(f"{file}: its images are {theirs}, those of the model {ours}")
    names, fits = tuple(f"{file}[{k}]" for k in range(len(images))), images.shape[-2:] == (size, size)
    if not fits:
        images = resize(Split(images, torch.zeros(len(images), dtype=torch.int64)), size).images
    return Given(names, images, _notes(0 if fits else len(images), len(images), size))
