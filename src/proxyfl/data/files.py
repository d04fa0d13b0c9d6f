"""Files on disk: where data sets live, checksums and what they are worth, sizes in words, progress bars."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.machine import usable_memory
from proxyfl.core.text import printable

CHUNK = 1 << 20


@dataclass(frozen=True)
class Checksum:
    """A checksum and who says so: ``official`` ones are published by the data set's authors.

    The others are values in general use among loaders of the same files.
    """

    algorithm: str
    value: str
    official: bool = False


@dataclass(frozen=True)
class RemoteFile:
    """One file to download: its place under the data root, its address, its checksum.

    An archive names the folder under the data root that it becomes (``unpacks_to``).
    """

    path: str
    url: str
    checksum: Checksum | None = None
    unpacks_to: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a file's checksum says: official, customary, recorded, unknown or differs."""

    word: str
    detail: str


def user_cache() -> Path:
    """The folder in which this user's programs keep what they can make or fetch again."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "proxyfl"
    base = os.environ.get("LOCALAPPDATA") if os.name == "nt" else os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "proxyfl"


def data_root(root: Path | str | None = None) -> Path:
    """The data folder: the argument, else the environment variable PROXYFL_DATA, else the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    named = os.environ.get("PROXYFL_DATA")
    return Path(named).expanduser() if named else user_cache()


def digest(path: Path, algorithm: str) -> str:
    """The checksum of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def record_of(path: Path) -> Path:
    """Where the checksum of a download is recorded when nobody publishes one."""
    return path.with_name(path.name + ".sha256")


def record(path: Path) -> str:
    """Note the SHA-256 of ``path`` beside it, in the form ``sha256sum -c`` reads."""
    value = digest(path, "sha256")
    record_of(path).write_text(f"{value}  {path.name}\n", encoding="utf-8")
    return value


def judge(path: Path, known: Sequence[Checksum] = ()) -> Verdict:
    """Compare a file with every checksum known for it, the recorded one included."""
    for checksum in known:
        if digest(path, checksum.algorithm) == checksum.value:
            word = "official" if checksum.official else "customary"
            return Verdict(word, f"{checksum.algorithm} {checksum.value}")
    if known:
        first = known[0]
        actual = digest(path, first.algorithm)
        return Verdict("differs", f"{first.algorithm} {actual}, expected {first.value}")
    actual = digest(path, "sha256")
    note = record_of(path)
    if not note.is_file():
        return Verdict("unknown", f"sha256 {actual}, no official checksum is known")
    with note.open("rb") as file:
        recorded = re.match(rb"[0-9a-f]{64}", file.read(64))
    if recorded and recorded[0].decode() == actual:
        return Verdict("recorded", f"sha256 {actual}, as recorded when it was downloaded")
    return Verdict("differs", f"sha256 {actual}, {note.name} says otherwise")


def memory_limit() -> int:
    """The most memory a file may ask for: half of what there is."""
    return usable_memory() // 2


@contextmanager
def progress(title: str, total: int | None, *, of_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, shown only on a terminal; yields the function that moves it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    counts = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(escape(printable(title)), total=total)
        yield lambda step: bars.advance(task, step)
