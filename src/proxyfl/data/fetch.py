"""Brings a whole data set from its official address: downloads, checks and unpacks what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from proxyfl.core.errors import DataError
from proxyfl.data.archives import unpack
from proxyfl.data.download import download
from proxyfl.data.files import RemoteFile, judge
from proxyfl.data.sources.base import Source

Tell: TypeAlias = Callable[[str], None]


def fetch(
    source: Source,
    root: Path,
    *,
    mirror: str | None = None,
    force: bool = False,
    tell: Tell = lambda line: None,
) -> Path:
    """Bring a data set under ``root`` and return its folder; what is complete already is left alone.

    ``mirror`` is an address that holds the same files under the same names. ``force`` puts an incomplete or
    different copy aside as NAME.old, where otherwise it would not be touched.
    """
    if not source.files:
        reason = "it is your own data" if source.takes_path else "it comes with scikit-learn"
        raise DataError(f"there is nothing to fetch for {source.name}: {reason}")
    files = _needed(source, root)
    found = source.locate(root)
    if found.folder is not None and not force:
        short = source.shortfall(*found.counts) if found.counts else found.note
        if not short:
            tell(f"{source.name} is already in {found.folder}")
            return found.folder
        if any(file.unpacks_to for file in files):
            raise DataError(f"{found.folder} holds only {short}; add --force to put it aside and fetch all")
    for file in files:
        if mirror is not None:
            file = replace(file, url=f"{mirror.rstrip('/')}/{Path(file.path).name}")
        _bring(file, root, force, tell)
    after = source.locate(root)
    if after.folder is None:
        raise source.missing(root, after, "what belongs to it, though it was fetched,")
    return after.folder


def _needed(source: Source, root: Path) -> tuple[RemoteFile, ...]:
    """The files to bring; an alternative archive that is already there makes a download needless."""
    here = [file for file in source.alternatives if (root / file.path).is_file()]
    if here and not all((root / file.path).is_file() for file in source.files):
        return (here[0],)
    return source.files


def _bring(file: RemoteFile, root: Path, force: bool, tell: Tell) -> None:
    target = root / file.path
    known = (file.checksum,) if file.checksum else ()
    if force and target.is_file() and judge(target, known).word == "differs":
        _put_aside(target, tell)
    download(file, root)
    tell(f"{target}: {judge(target, known).word} checksum")
    if not file.unpacks_to:
        return
    folder = root / file.unpacks_to
    if force and folder.exists():
        _put_aside(folder, tell)
    unpack(target, folder)
    tell(f"{folder}: unpacked")


def _put_aside(path: Path, tell: Tell) -> None:
    number = 1
    while (old := path.with_name(f"{path.name}.old{number}")).exists():
        number += 1
    path.rename(old)
    tell(f"{path} is now {old.name}")
