"""Data that has to fit what is known: a federation's classes, channels and image size, or the features of its
vectors. Sites read theirs so.

Every fault is an error: a site's people should correct their data before they take part.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from proxyfl.core.checksum import write_tensors
from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.dataset import Split, resize
from proxyfl.data.files import memory_limit
from proxyfl.data.images import decode_all, is_image, survey, with_channels
from proxyfl.data.medical import split_slice
from proxyfl.data.numbers import is_vectors
from proxyfl.data.reader.arrays import Array, read_arrays, read_headers
from proxyfl.data.reader.columns import Rows, read_rows, read_texts
from proxyfl.data.reader.folders import list_images
from proxyfl.data.reader.listing import NO_LABEL, Entry, Listing, as_one_error, class_number, in_order
from proxyfl.data.reader.tables import CHOICES, LABELS_FILE, Table, list_beside, read_table
from proxyfl.data.texts import NUMBERS

CACHE_FORMAT = 2


@dataclass(frozen=True)
class Form:
    """What images have to be. A ``size`` of 0 means vectors of ``channels`` features, which may have names;
    where both are 0, texts, whose column may have a name. ``keys`` names arrays or columns that are called
    otherwise.
    """

    classes: tuple[str, ...]
    channels: int
    size: int
    features: tuple[str, ...] = ()
    keys: str = ""

    @property
    def of_texts(self) -> bool:
        return (self.channels, self.size) == NUMBERS


@dataclass(frozen=True)
class Known:
    """Images and labels (-1: none) in reading order, and the split that each one's folder or table names
    (empty: none). ``clients`` are those that the data names, ``notes`` what should be said about it.
    """

    data: Split
    splits: tuple[str, ...]
    form: str
    clients: tuple[str, ...] = ()
    ignored: int = 0
    notes: tuple[str, ...] = ()

    def of(self, *splits: str) -> Tensor:
        """True for the images of these splits."""
        return torch.tensor([split in splits for split in self.splits], dtype=torch.bool)

    def take(self, mask: Tensor) -> Known:
        """The images for which ``mask`` is true."""
        splits = tuple(split for split, keep in zip(self.splits, mask.tolist(), strict=True) if keep)
        return replace(self, data=self.data.take(mask.nonzero()[:, 0]), splits=splits)


def find_form(path: Path) -> str:
    """Which form the data at ``path`` has: ``folder``, ``csv``, ``parquet`` or ``npz``."""
    if path.is_dir():
        return "csv" if (path / LABELS_FILE).is_file() else "folder"
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a folder of images, a CSV of labels or an npz file")
    if path.suffix.lower() in (".csv", ".parquet", ".npz"):
        return path.suffix.lower()[1:]
    kind = "an image" if is_image(path) else f"a '{path.suffix}' file"
    raise DataError(f"{path} is {kind}; give a folder of images, a CSV of labels or an npz file")


def read_known(place: Path, form: Form, cache: Path | None = None, *, by_name: bool = False) -> Known:
    """The data at ``place``. ``cache`` is a folder for decoded images; ``by_name``, as for data that was not
    made for this, an npz file may number its classes in an order of its own, and damaged images are left out.
    """
    found = find_form(place)
    if found == "npz" and form.of_texts:
        raise DataError(
            f"{place} is an npz file, but texts are required; give a table with a column of texts"
        )
    if found == "npz":
        return read_npz(place, form, by_name=by_name)
    if not form.size:
        return _read_table(place, form)
    if place.is_file():
        listing = list_beside(place, form.classes, form.keys)
    else:
        listing = list_images(place, form.classes)
    try:
        images, sound, notes = _read(listing, form, cache if not listing.faults else None, leave_out=by_name)
    except DataError as fault:
        raise as_one_error([*listing.faults, str(fault)]) from None
    if listing.faults:
        raise as_one_error(listing.faults)
    entries = list(itertools.compress(listing.entries, sound))
    split = Split(images, _numbers(entries, form))
    splits = tuple(entry.split or "" for entry in entries)
    return Known(split, splits, found, listing.clients, listing.ignored, notes)


def fitting_keys(place: Path, keys: str) -> str:
    """Those of another file's ``data.keys`` whose arrays or columns this one has, too."""
    if not keys or not place.is_file():
        return keys
    try:
        names = read_headers(place) if find_form(place) == "npz" else read_table(place).columns
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        return keys  # whoever reads it says what is wrong
    given = (part.partition("=") for part in keys.split(","))
    fits = [
        f"{role.strip()}={name.strip()}"
        for role, _, name in given
        if name.strip() in names or role.strip() in CHOICES
    ]
    return ",".join(fits)


def _read_table(place: Path, form: Form) -> Known:
    """The vectors or texts in a table's rows."""
    if place.is_dir():
        wanted = f"vectors of {form.channels} features are required; give an npz file or a table of numbers"
        if form.of_texts:
            wanted = "texts are required; give a table with a column of texts"
        raise DataError(f"{place} is a folder, but {wanted}")
    table = read_table(place, form.keys)
    rows = _rows(table, form)
    unnamed = f"there is no column '{table.roles['label']}', so no row has a label; set another with keys"
    notes = (*rows.notes, unnamed) if table.texts("label") is None else rows.notes
    clients = in_order(entry.client for entry in rows.entries if entry.client is not None)
    if not form.of_texts and rows.vectors.shape[1] != form.channels:
        raise DataError(_other_features(place, rows.vectors.shape[1], form))
    split = Split(torch.from_numpy(rows.vectors), _numbers(rows.entries, form))
    splits = tuple(entry.split or "" for entry in rows.entries)
    return Known(split, splits, place.suffix.lower()[1:], clients, notes=notes)


def _numbers(entries: Iterable[Entry], form: Form) -> Tensor:
    """Their labels."""
    numbers = [NO_LABEL if entry.label is None else form.classes.index(entry.label) for entry in entries]
    return torch.tensor(numbers, dtype=torch.int64)


def _rows(table: Table, form: Form) -> Rows:
    if form.of_texts:
        return read_texts(table, form.classes, form.features[0] if form.features else "")
    return read_rows(table, form.classes, form.features)


def _other_features(file: Path, found: int, form: Form) -> str:
    return f"{file}: its vectors have {found:,} features, but {form.channels:,} are required"


def _read(
    listing: Listing, form: Form, cache: Path | None, *, leave_out: bool
) -> tuple[Tensor, Sequence[bool], tuple[str, ...]]:
    """The images of a listing, which of its entries they are, and notes. Damaged ones are an error, or left
    out.
    """
    count = len(listing.entries)
    kept = None if cache is None else _kept(cache, listing.files, form)
    shape = (count, form.channels, form.size, form.size)
    if kept is not None and (found := _cached(kept, shape)) is not None:
        return found[0], [True] * count, tuple(filter(None, (found[1],)))
    needed = int(np.prod(shape, dtype=object))
    if needed > memory_limit():
        raise DataError(f"the images of {listing.root} need {in_words(needed)}, too much for this machine")
    looked, title = survey(listing.files), f"reading {listing.root.name}"
    pixels, sound, depth = decode_all(looked, form.channels, form.size, title, leave_out=leave_out)
    images = torch.from_numpy(pixels)
    if kept is not None and not looked.faults:
        _write_cache(kept, images, depth)
    return images, sound.tolist(), tuple(filter(None, (depth, looked.left_out)))


def read_npz(file: Path, form: Form, *, by_name: bool = False) -> Known:
    """Images and labels of all splits. An array ``classes`` of names, where there is one, must be the
    federation's list; ``by_name``, and where labels are names, it may have another order. One error tells
    all that is wrong.
    """
    try:
        arrays = read_arrays(file, form.keys)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read ({error}); replace it") from None
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    by_name = by_name or arrays.named
    faults: list[str] = []
    if arrays.classes is not None and not by_name and arrays.classes != form.classes:
        faults.append(
            f"{file}: its classes {list(arrays.classes)} are not the federation's {list(form.classes)}"
        )
    labels = {}
    for split, (pixels, numbers) in arrays.parts.items():
        faults += _misfits(file, pixels, form)
        try:
            labels[split] = _labels(file, torch.from_numpy(numbers), arrays.classes, form, by_name)
        except DataError as fault:
            faults.append(str(fault))
    if faults:
        raise as_one_error(list(dict.fromkeys(faults)))
    parts = [_fitting(arrays.parts[split][0], labels[split], form) for split in arrays.parts]
    splits = [split for split, part in zip(arrays.parts, parts, strict=True) for _ in range(len(part))]
    whole = Split(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    clients = () if arrays.clients is None else in_order(filter(None, arrays.clients.tolist()))
    return Known(whole, tuple(splits), "npz", clients, notes=arrays.notes)


def _misfits(file: Path, samples: Array, form: Form) -> list[str]:
    """Why these samples cannot be brought to the form that is wanted."""
    if is_vectors(samples) != (not form.size):
        theirs, ours = ("vectors", "images") if form.size else ("images", "vectors")
        return [f"{file} contains {theirs}, but {ours} are required"]
    if form.size or samples.shape[1] == form.channels:
        return []
    return [_other_features(file, samples.shape[1], form)]


def _labels(file: Path, labels: Tensor, names: Sequence[str] | None, form: Form, by_name: bool) -> Tensor:
    """Labels as numbers in the order that is wanted."""
    if by_name or (names is None and _by_number(form.classes)):
        labels = _renumbered(file, labels, names, list(form.classes))
    wrong = ((labels < NO_LABEL) | (labels >= len(form.classes))).nonzero()[:, 0].tolist()
    if not wrong:
        return labels
    more = f" ({len(wrong):,} such labels in all)" if len(wrong) > 1 else ""
    raise DataError(
        f"{file}: {'image' if form.size else 'vector'} {wrong[0]} has class {int(labels[wrong[0]])}{more}; "
        f"use 0 to {len(form.classes) - 1}, or -1 for none"
    )


def _fitting(samples: Array, labels: Tensor, form: Form) -> Split:
    """The samples of one split; images are brought to their size, and to grey or colour."""
    samples = with_channels(samples, form.channels) if form.size else samples
    split = Split(torch.from_numpy(np.require(samples, requirements=["C", "W"])), labels)
    fits = not form.size or split.images.shape[-2:] == (form.size, form.size)
    return split if fits else resize(split, form.size)


def _renumbered(file: Path, labels: Tensor, names: Sequence[str] | None, classes: list[str]) -> Tensor:
    """Labels of a file with its own order of classes, as numbers in ours."""
    if names is None and not _by_number(classes):
        raise DataError(
            f"{file} has no array 'classes', so the meaning of the numbers is unknown; "
            "add the names, in the order of their numbers"
        )
    known, places = torch.unique(labels, return_inverse=True)
    if names is not None and len(known) and int(known[-1]) >= len(names):
        raise DataError(f"{file}: an image has class {int(known[-1])}, but there are {len(names)} names")
    numbers = [
        label
        if label < 0
        else class_number(str(label) if names is None else names[label], classes, str(file))
        for label in known.tolist()
    ]
    return torch.tensor(numbers, dtype=torch.int64)[places]


def _by_number(classes: Sequence[str]) -> bool:
    """Whether classes are called by numbers: 0, 1, … or, as many people count, from 1 on, or with gaps."""
    return all(name.isascii() and name.isdecimal() for name in classes)


def _kept(cache: Path, files: Sequence[Path], form: Form) -> Path:
    """Where the decoded images of these very files belong."""
    states = [
        (str(file), state.st_size, state.st_mtime_ns)
        for file in files
        for state in ((file if file.is_file() else split_slice(file)[0]).stat(),)
    ]
    key = hashlib.sha256(json.dumps([CACHE_FORMAT, form.channels, form.size, states]).encode()).hexdigest()
    return cache / f"images-{key[:32]}.safetensors"


def _cached(file: Path, shape: tuple[int, ...]) -> tuple[Tensor, str] | None:
    """The decoded images and what there was to tell about them, where they are there."""
    try:
        with safe_open(file, framework="pt") as content:
            images, depth = content.get_tensor("images"), (content.metadata() or {}).get("depth", "")
    except (OSError, SafetensorError):
        return None
    return (images, depth) if (images.dtype, *images.shape) == (torch.uint8, *shape) else None


def _write_cache(file: Path, images: Tensor, depth: str) -> None:
    """Keep the decoded images, and those of no earlier state of the data."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for old in file.parent.glob("images-*.safetensors"):
        old.unlink(missing_ok=True)
    write_tensors(file, {"images": images}, {"depth": depth})
