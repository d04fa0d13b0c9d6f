"""The three forms in which a site may keep its images: class folders, a CSV of labels, one npz file.

Nothing is trusted: no path or link leads out of the site's folder, pickles are refused, and sizes are known
before memory is given. A label of -1 means that an image has none.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import DataError, nearest
from proxyfl.data.dataset import Split, resize
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.images import SUFFIXES, decode_all, list_folder, survey
from proxyfl.data.sources.npz import NAMINGS, channels_first, check_images, check_labels, read_headers

UNLABELLED = ("unlabelled", "unlabeled")
"""The folder for images without a label, in either spelling."""
LABELS_FILE = "labels.csv"
MAX_CSV = 256 << 20
NO_LABEL = -1


@dataclass(frozen=True)
class Listing:
    """Image files and the label of each, and how many other entries were passed over."""

    root: Path
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    ignored: int = 0

    def read(self, channels: int, size: int) -> tuple[Split, str]:
        """The images as squares of ``size``, and what there is to tell about their decoding."""
        needed = len(self.files) * channels * size * size
        if needed > memory_limit():
            raise DataError(f"the images of {self.root} need {in_words(needed)}, too much for this machine")
        images, note = decode_all(survey(self.files), channels, size, f"reading {self.root.name}")
        return Split(torch.from_numpy(images), torch.tensor(self.labels, dtype=torch.int64)), note


def list_class_folders(root: Path, classes: Sequence[str]) -> Listing:
    """``CLASS/*`` with labels; ``unlabelled/*`` and the images in ``root`` itself without."""
    reserved = next((name for name in UNLABELLED if name in classes), None)
    if reserved:
        raise DataError(f"a class is called '{reserved}' like the folder without labels; use a CSV or npz")
    folders, loose, ignored = list_folder(root, root)
    files: list[Path] = []
    labels: list[int] = []
    without = list(loose)
    for folder in sorted(folders, key=lambda folder: _place(folder, classes)):
        nested, images, others = list_folder(folder, root)
        ignored += others + len(nested)
        if folder.name in UNLABELLED:
            without += images
        else:
            files += images
            labels += [_class(folder.name, classes, str(folder))] * len(images)
    return Listing(root, (*files, *without), (*labels, *[NO_LABEL] * len(without)), ignored)


def _place(folder: Path, classes: Sequence[str]) -> tuple[int, str]:
    return (classes.index(folder.name) if folder.name in classes else len(classes)), folder.name


def list_by_csv(table: Path, classes: Sequence[str]) -> Listing:
    """Images below the CSV's folder: those it names with a label first, in its order, then the others."""
    root = table.parent
    images, ignored = _walk(root, root)
    known = {path.relative_to(root).as_posix(): path for path in images}
    labels: dict[str, int] = {}
    for line, name, label in _rows(table):
        where = f"{table}, line {line}"
        key = _safe_relative(name, where)
        if key not in known:
            raise DataError(f"{where}: there is no image '{name}' below {root}")
        if key in labels:
            raise DataError(f"{where}: '{name}' is named twice; keep one line")
        labels[key] = _class(label, classes, f"{where}, file '{name}'") if label else NO_LABEL
    labelled = [key for key, label in labels.items() if label != NO_LABEL]
    rest = [key for key in known if labels.get(key, NO_LABEL) == NO_LABEL]
    files = tuple(known[key] for key in (*labelled, *rest))
    others = ignored if table.name.startswith(".") else ignored - 1  # the table itself is meant to be there
    return Listing(root, files, (*(labels[key] for key in labelled), *[NO_LABEL] * len(rest)), others)


def _rows(table: Path) -> list[tuple[int, str, str]]:
    """(line, file, label) of every row."""
    if table.stat().st_size > MAX_CSV:
        raise DataError(f"{table} is larger than {in_words(MAX_CSV)}; that is no table of labels")
    try:
        text = table.read_text(encoding="utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        head = [cell.strip() for cell in next(reader, [])]
        if head != ["file", "label"]:
            raise DataError(f"{table} must begin with the line 'file,label', not '{','.join(head)[:80]}'")
        rows = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != 2:
                raise DataError(f"{table}, line {reader.line_num}: {len(cells)} cells instead of file,label")
            rows.append((reader.line_num, cells[0].strip(), cells[1].strip()))
        return rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table} cannot be read as a CSV in UTF-8: {error}") from None


def _safe_relative(name: str, where: str) -> str:
    """A file's name as a plain relative path; whatever could lead elsewhere is refused."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0]:
        raise DataError(f"{where}: '{name}' must be a path below the CSV's folder, with / and without ..")
    return path.as_posix()


def _walk(folder: Path, root: Path) -> tuple[list[Path], int]:
    """Every image below a folder, sorted; linked folders are refused, since they may turn in circles."""
    folders, images, ignored = list_folder(folder, root)
    for inner in folders:
        if inner.is_symlink():
            raise DataError(f"{inner} is a linked folder; copy its images there instead")
        deeper, others = _walk(inner, root)
        images += deeper
        ignored += others
    return images, ignored


def _class(label: str, classes: Sequence[str], where: str) -> int:
    if label not in classes:
        hint = nearest(label, classes)
        raise DataError(f"{where}: class '{label}' is not in the federation's class list; {hint}")
    return list(classes).index(label)


def read_npz(file: Path, classes: Sequence[str], channels: int, size: int, *, by_name: bool = False) -> Split:
    """``images`` (N×H×W or N×H×W×3, uint8) and ``labels`` (whole numbers, -1: none; left out: all without).

    An array ``classes`` of names, where there is one, must be the federation's list; ``by_name``, it may have
    another order, and the test images of a data set in one file are read, too.
    """
    try:
        images, labels, names = _npz_arrays(file, whole_sets=by_name)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read ({error}); replace it") from None
    except ValueError as error:
        raise DataError(f"{file}: {error}") from None
    if by_name:
        labels = _renumbered(file, labels, names, list(classes))
    elif names is not None and names != list(classes):
        raise DataError(f"{file}: its classes {names} are not the federation's {list(classes)}")
    if images.shape[1] != channels:
        raise DataError(f"{file}: images have {images.shape[1]} channel(s), the federation's {channels}")
    if len(labels) != len(images):
        raise DataError(f"{file}: {len(images)} images but {len(labels)} labels")
    wrong = ((labels < NO_LABEL) | (labels >= len(classes))).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise DataError(
            f"{file}: image {place} has class {int(labels[place])}; "
            f"use 0 to {len(classes) - 1}, or -1 for none"
        )
    split = Split(images, labels)
    return split if images.shape[-2:] == (size, size) else resize(split, size)


def _renumbered(file: Path, labels: Tensor, names: list[str] | None, classes: list[str]) -> Tensor:
    """Labels of a file with its own order of classes, as numbers in ours."""
    own = [str(number) for number in range(len(classes))] if names is None else names
    if names is None and own != classes:
        raise DataError(
            f"{file} has no array 'classes', so nobody knows which class a number means; add the names, in "
            "the order of their numbers"
        )
    if bool((labels >= len(own)).any()):
        raise DataError(f"{file}: an image has class {int(labels.max())}, but there are {len(own)} names")
    for number in sorted(set(labels[labels >= 0].tolist())):
        _class(own[number], classes, str(file))
    places = torch.tensor([classes.index(name) if name in classes else NO_LABEL for name in own])
    return torch.where(labels < 0, labels, places[labels.clamp(min=0)])


def _npz_arrays(file: Path, *, whole_sets: bool = False) -> tuple[Tensor, Tensor, list[str] | None]:
    headers = read_headers(file)
    sets = [names[2:] for names in NAMINGS if names[2] in headers] if whole_sets else []
    image_key, label_key = ("images", "labels") if "images" in headers or not sets else sets[0]
    if image_key not in headers:
        raise ValueError(f"it holds {', '.join(sorted(headers)) or 'nothing'}, expected images and labels")
    wanted = [name for name in (image_key, label_key, "classes") if name in headers]
    bytes_ = sum(int(np.prod(headers[name][0], dtype=object)) * headers[name][1].itemsize for name in wanted)
    if bytes_ > memory_limit():
        raise ValueError(f"it holds {in_words(bytes_)}, too much for this machine's memory")
    check_images(image_key, *headers[image_key])
    if label_key in headers:
        check_labels(label_key, *headers[label_key])
    if "classes" in headers and headers["classes"][1].kind != "U":
        raise ValueError(f"classes is {headers['classes'][1]}, expected names")
    with np.load(file, allow_pickle=False) as content:
        images = channels_first(content[f"{image_key}.npy"])
        without = np.full(len(images), NO_LABEL)
        labels = content[f"{label_key}.npy"].reshape(-1) if label_key in headers else without
        names = content["classes.npy"].reshape(-1).tolist() if "classes" in headers else None
    owned = np.require(images, requirements=["C", "W"])
    # Through the widest signed type a huge unsigned label cannot turn into a valid one.
    if labels.dtype.kind == "u" and labels.size and int(labels.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"a label is {int(labels.max())}")
    return torch.from_numpy(owned), torch.from_numpy(labels.astype(np.int64)), names


def find_form(path: Path) -> str:
    """Which form the data at ``path`` has: ``folder``, ``csv`` or ``npz``."""
    if path.is_dir():
        return "csv" if (path / LABELS_FILE).is_file() else "folder"
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a folder of images, a CSV of labels or an npz file")
    if path.suffix.lower() in (".csv", ".npz"):
        return path.suffix.lower()[1:]
    kind = "an image" if path.suffix.lower() in SUFFIXES else f"a '{path.suffix}' file"
    raise DataError(f"{path} is {kind}; give a folder of images, a CSV of labels or an npz file")
