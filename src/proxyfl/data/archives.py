"""Unpacks tar and zip archives so that no member can escape, overwrite or fill the disk.

Members are written by this module, not by the archive libraries: regular files and folders only, below the
target, with plain permissions. Everything is unpacked aside; the target appears complete or not at all.
"""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.files import CHUNK

MAX_BYTES = 8 << 30
MAX_MEMBERS = 1_000_000
MAX_RATIO, ALWAYS_FINE = 100, 64 << 20
"""How many times its own size an archive may unpack to, beyond some megabytes: images hardly shrink."""
MAX_READ = 1 << 20
FAULTS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, OSError, RuntimeError, ValueError, ArithmeticError, LookupError, MemoryError),
)
"""What the standard library's readers raise on damaged archives; RuntimeError where a password is asked."""

Member: TypeAlias = tuple[str, IO[bytes] | None]
"""A member's name and its content; None for a folder."""


class Refused(Exception):
    """A member that has no place in an archive of data."""


class _Bounded(io.RawIOBase):
    """A tar file as tarfile sees it. Its headers may claim any length: no single read may be long."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile) -> None:
        self.stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise Refused(f"a header of {size} bytes")
        return self.stream.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self.stream.seek(offset, whence)

    def tell(self) -> int:
        return self.stream.tell()


def _tar_members(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as outer:
        zipped = outer.read(2) == b"\x1f\x8b"
        outer.seek(0)
        inner = gzip.GzipFile(fileobj=outer) if zipped else outer
        with tarfile.open(fileobj=_Bounded(inner), mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else every member stays in memory
                if member.isdir():
                    yield member.name, None
                elif member.isreg() and not member.issparse() and member.size >= 0:
                    yield member.name, tar.extractfile(member)
                else:
                    raise Refused(f"{member.name!r}, which is neither a plain file nor a folder")


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or member.flag_bits & 1:
                raise Refused(f"{member.filename!r}, which is neither a plain file nor a folder")
            if member.is_dir():
                yield member.filename, None
            else:
                with content.open(member) as stream:
                    yield member.filename, stream


def _members(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    return _zip_members(archive) if zipped else _tar_members(archive)


def _place(name: str, folder: Path) -> Path:
    """Where a member goes below ``folder``."""
    path = PurePosixPath(name)
    parts = [part for part in path.parts if part != "."]
    strange = any(sign in name for sign in "\0\\:")
    if path.is_absolute() or ".." in parts or strange:
        raise Refused(f"{name!r}, which would leave the folder")
    return folder.joinpath(*parts)


def _write(members: Iterator[Member], folder: Path, max_bytes: int, max_members: int) -> None:
    written = 0
    for count, (name, stream) in enumerate(members):
        if count >= max_members:
            raise Refused(f"more than {max_members:,} members")
        target = _place(name, folder)
        if stream is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:  # "x": no member may replace another
            while piece := stream.read(CHUNK):
                written += len(piece)
                if written > max_bytes:
                    raise Refused(f"more than {in_words(max_bytes)}")
                out.write(piece)


def _content(folder: Path) -> Path:
    """What the archive was about: its only folder, else everything."""
    entries = list(folder.iterdir())
    return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder


def unpack(
    archive: Path, target: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS
) -> Path:
    """Unpack ``archive`` as the folder ``target``, which must not exist.

    An archive that holds one folder becomes that folder, whatever its name; any other goes into ``target``.
    """
    if target.exists():
        raise DataError(f"{target} exists already; move it away first")
    aside = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
        room = min(max_bytes, ALWAYS_FINE + MAX_RATIO * archive.stat().st_size)
        _write(_members(archive), aside, room, max_members)
        content = _content(aside)
        if not any(content.iterdir()):
            raise Refused("no files")
        content.chmod(0o755)
        content.rename(target)
    except Refused as error:
        raise DataError(f"{archive} was not unpacked: it contains {error}; fetch it again") from None
    except FAULTS as error:
        raise DataError(f"{archive} was not unpacked ({error}); delete it and fetch it again") from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
    return target
