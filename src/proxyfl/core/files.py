"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.core.machine import usable_memory

SHORT = 16 << 20
"""Bytes that a file of notes may have: a manifest, the environment, who takes part."""

SPOOL = "spool-"
"""How the names of folders with waiting updates begin."""

JSON_SWELLS = 16
"""How many times its length a JSON text may take, read: short lists and tables are much larger inside."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write aside, flush to the disk, then rename."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_output(path: Path, content: bytes) -> Path:
    """A file of a report: whole or not at all, its folder made where there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    except OSError as error:
        raise RunError(
            f"writing {path} failed: {error.strerror or error}; make room or choose another folder"
        ) from error
    return path


def append_bytes(path: Path, content: bytes) -> None:
    """Add to the end and flush to the disk. A crash may leave a part: who reads must know how much counts."""
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_bounded(path: Path, swells: int = 2, most: int | None = None) -> bytes:
    """All of a file that may be untrusted. It must have at most so many bytes, and be small enough for the
    memory to hold it ``swells`` times, else :class:`RunError`; a missing one is a :class:`FileNotFoundError`.
    """
    with opened(path) as file:
        return file.read(_size(path, file, swells, most))


def _size(path: Path, file: BufferedReader, swells: int, most: int | None) -> int:
    size = os.fstat(file.fileno()).st_size
    if most is not None and size > most:
        raise RunError(f"{path} is damaged: it has {size:,} bytes, at most {most:,} are read")
    if size * swells > usable_memory() // 2:
        raise RunError(f"{path} is damaged: {size:,} bytes are more than this machine's memory can hold")
    return size


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file that may be untrusted, to read. It must be an ordinary one that can be read, else
    :class:`RunError`; nothing is waited for, as a pipe would be for ever.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise RunError(f"{path} is not a regular file; replace it with one")
            yield file
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise RunError(f"{path} is a folder where a file is expected; put the file there instead") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}; make it readable") from error


def has_hash(path: Path, expected: object, most: int | None = None) -> bool:
    """Whether a file that may be untrusted is there and has this SHA-256; it is read in pieces."""
    try:
        with opened(path) as file:
            _size(path, file, 1, most)
            return hashlib.file_digest(file, "sha256").hexdigest() == expected
    except (OSError, RunError):
        return False


def begins_with(path: Path, expected: bytes, *, whole: bool = False) -> bool:
    """Whether a file that may be untrusted begins with these bytes; ``whole``: and ends with them."""
    try:
        with opened(path) as file:
            size = _size(path, file, 1, None)
            return (not whole or size == len(expected)) and file.read(len(expected)) == expected
    except (OSError, RunError):
        return False


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def clear_asides(folder: Path) -> None:
    """Remove what processes that are gone were writing when they ended."""
    for stale in folder.glob(".*.aside"):
        if stale.is_file() and not _is_running(stale.name.split(".")[-2]):
            stale.unlink(missing_ok=True)


def _is_running(pid: str) -> bool:
    if not pid.isdecimal() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return int(pid) != os.getpid()


def sync_folder(folder: Path) -> None:
    """Make a rename inside the folder durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """SHA-256 of a file, which is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def leads_into(path: Path, home: Path) -> bool:
    """Whether a path that may be a link ends inside ``home``, which is resolved."""
    try:
        return path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):  # a link that leads to itself
        return False
