"""What follows from the program alone, kept in the user's cache: reading it takes less than importing torch.

Nothing is kept or read where user code may have a say: with plug-ins, or once the methods are imported,
because from then on anybody may register one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from proxyfl.core import plugins
from proxyfl.core.errors import RunError
from proxyfl.core.files import read_bounded, write_bytes
from proxyfl.core.machine import processor

VARIABLE = "PROXYFL_CACHE"
"""The environment variable with the cache folder. If it is empty, nothing is cached."""

MOST = 1 << 20
"""Bytes of a file that are read."""


def place(*what: object) -> Path | None:
    """The file that is kept about something, described in JSON: another one for another state of the program.
    None where nothing is kept.
    """
    folder = os.environ.get(VARIABLE, _usual_folder())
    asked = os.environ.get(plugins.VARIABLE) or plugins.loaded
    if not folder or asked or "proxyfl.methods" in sys.modules:
        return None
    try:
        return Path(folder).expanduser() / "kept" / _program() / f"{_short(what)}.txt"
    except (OSError, RuntimeError):  # no home folder, or a source file that has just gone
        return None


def read(file: Path) -> str:
    """What is kept there; nothing where there is none, or not all of what was written for this very file."""
    with contextlib.suppress(OSError, RunError, UnicodeDecodeError):
        checksum, _, text = read_bounded(file, most=MOST).decode().partition("\n")
        if checksum == _checksum(file, text):
            return text
    return ""


def keep(file: Path, text: str) -> None:
    """Where it can be written; what was kept of the same package in another state goes."""
    with contextlib.suppress(OSError, UnicodeEncodeError):
        content = f"{_checksum(file, text)}\n{text}".encode()
        if len(content) > MOST:
            return
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(file, content)
        package = file.parent.name.partition("-")[0]
        for other in file.parent.parent.glob(f"{package}-*"):
            if other != file.parent:
                shutil.rmtree(other, ignore_errors=True)


def fact(make: Callable[[], Any], *what: object, state: str = "") -> Any:
    """Something that JSON can hold: as it was kept, else as ``make`` finds it. If the ``state`` of what it
    was made from has changed, it is made again.
    """
    file = place(*what)
    if file is not None and (text := read(file)):
        then, found = json.loads(text)
        if then == state:
            return found
    found = make()
    if file is not None:
        keep(file, json.dumps([state, found]))
    return found


def state_of(*folders: Path) -> str:
    """Changes with any file in the folders or one level below: runs, say, or exported results."""
    return _short([_files(folder, deeper=True) for folder in folders])


def _files(folder: Path, deeper: bool = False) -> list[object]:
    """Name, size and time of what is in a folder; of what is in a folder in it, too, if ``deeper``."""
    found: list[object] = []
    with contextlib.suppress(OSError):  # no folder, or one that may not be read
        for entry in sorted(folder.iterdir()):
            try:
                stat = entry.stat()
            except OSError:  # a link to nothing, or a file that has just gone
                found.append(entry.name)
                continue
            inner = _files(entry) if deeper and S_ISDIR(stat.st_mode) else None
            found.append([entry.name, stat.st_size, stat.st_mtime_ns, inner])
    return found


def _checksum(file: Path, text: str) -> str:
    return _short([file.parent.name, file.name, text])


def _usual_folder() -> str:
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "proxyfl")


def _program() -> str:
    """Which Python on which processor has the package and where it lies, and the state of its source."""
    from proxyfl.core.provenance import PACKAGE, source_hash

    state = [source_hash(), metadata.version("torch")]
    return f"{_short([str(PACKAGE), sys.version, processor()])}-{_short(state)}"


def _short(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
