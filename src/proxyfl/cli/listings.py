"""Listings that follow from the program alone are made once: reading one takes less than importing torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TextIO

LISTINGS = ("methods", "models", "comm")
"""Commands that are kept as they stand; with options, more than the program may decide what they print."""

VARIABLE = "PROXYFL_CACHE"
"""The environment variable with the cache folder. If it is empty, nothing is cached."""

MOST = 1 << 20
"""Bytes of a listing that are read."""


def kept(words: Sequence[str], make: Callable[[], Any]) -> None:
    """Print the listing that these words ask for: as it was kept, else as ``make`` prints it."""
    try:
        place = _place(words)
    except (OSError, RuntimeError):  # no home folder, or a source file that has just gone
        place = None
    if place is None:
        make()
    elif text := _read(place):
        _print(text)
    else:
        heard = _Heard(sys.stdout)
        with contextlib.redirect_stdout(heard):
            try:
                make()
            except SystemExit as end:
                if not end.code:
                    _keep(place, "".join(heard.parts))
                raise


def _read(place: Path) -> str:
    from proxyfl.core.errors import RunError
    from proxyfl.core.files import read_bounded

    with contextlib.suppress(OSError, RunError, UnicodeDecodeError):
        return read_bounded(place, most=MOST).decode()
    return ""


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads it has seen enough; the interpreter flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


class _Heard:
    """A stream that passes everything on, and knows what was written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.parts = stream, list[str]()

    def write(self, text: str) -> int:
        count = self.stream.write(text)
        self.parts.append(text)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _place(words: Sequence[str]) -> Path | None:
    """The file for a call: another one for another terminal and for another state of the source."""
    from proxyfl.core.plugins import VARIABLE as PLUGINS

    folder = os.environ.get(VARIABLE, _usual_folder())
    if not folder or os.environ.get(PLUGINS) or not _is_listing(words) or "proxyfl.methods" in sys.modules:
        return None
    from proxyfl.cli.common import out

    console = out()
    colours = (console.color_system, console.no_color, console.is_terminal, console.legacy_windows)
    seen = [*words, console.width, console.encoding, *colours, sys.flags.optimize]
    return Path(folder).expanduser() / "listings" / _program() / f"{_short(seen)}.txt"


def _is_listing(words: Sequence[str]) -> bool:
    """Whether it is one of the listings, or the description of a method by its name."""
    if len(words) == 3 and tuple(words[:2]) == ("methods", "show"):
        return not words[2].startswith("-")
    return len(words) == 1 and words[0] in LISTINGS


def _usual_folder() -> str:
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "proxyfl")


def _program() -> str:
    """Which Python has the package and where it lies, and the state of its source."""
    from proxyfl.core.provenance import PACKAGE, source_hash

    return f"{_short([str(PACKAGE), sys.version])}-{source_hash()[:16]}"


def _short(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _keep(place: Path, text: str) -> None:
    """Where it can be written; listings of the same package in another state go."""
    from proxyfl.core.files import write_bytes

    with contextlib.suppress(OSError, UnicodeEncodeError):
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_bytes(place, text.encode())
        package = place.parent.name.partition("-")[0]
        for other in place.parent.parent.glob(f"{package}-*"):
            if other != place.parent:
                shutil.rmtree(other, ignore_errors=True)
