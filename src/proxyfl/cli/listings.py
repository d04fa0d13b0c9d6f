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
LOOKS_ELSEWHERE = ("--plugin", "--data")
"""Options after which more than the program decides what is listed."""

VARIABLE = "PROXYFL_CACHE"
"""The environment's word for the folder of listings. Empty: none is kept."""


def kept(words: Sequence[str], make: Callable[[], Any]) -> None:
    """Print the listing that these words ask for: as it was kept, else as ``make`` prints it."""
    place = _place(words)
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
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return place.read_text(encoding="utf-8")
    return ""


def _print(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # who read it has seen enough; nothing is flushed at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


class _Heard:
    """A stream that passes everything on, and knows what was written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.parts = stream, list[str]()

    def write(self, text: str) -> int:
        self.parts.append(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _place(words: Sequence[str]) -> Path | None:
    """The file for a call: another one for other words, another terminal and another state of the source."""
    from proxyfl.core.plugins import VARIABLE as PLUGINS

    folder = os.environ.get(VARIABLE, _usual_folder())
    if not folder or os.environ.get(PLUGINS) or not words or words[0] not in LISTINGS:
        return None
    if ("models" in words and "show" in words) or any(word.startswith(LOOKS_ELSEWHERE) for word in words):
        return None
    from proxyfl.cli.common import out

    console = out()
    seen = (console.width, console.color_system, console.is_terminal, console.encoding)
    call = hashlib.sha256(json.dumps([words, seen]).encode()).hexdigest()
    return Path(folder).expanduser() / "listings" / _program() / f"{call[:32]}.txt"


def _usual_folder() -> str:
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "proxyfl")


def _program() -> str:
    """Where the package lies, and the state of its source."""
    root = Path(__file__).parents[1]
    files = sorted((str(file), file.stat()) for file in root.rglob("*.py"))
    state = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
    parts = (str(root), json.dumps([state, sys.version]))
    return "-".join(hashlib.sha256(part.encode()).hexdigest()[:16] for part in parts)


def _keep(place: Path, text: str) -> None:
    """Where it can be written; listings of the same package in another state go."""
    from proxyfl.core.files import write_bytes

    with contextlib.suppress(OSError, UnicodeEncodeError):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(place, text.encode())
        package = place.parent.name.partition("-")[0]
        for other in place.parent.parent.glob(f"{package}-*"):
            if other != place.parent:
                shutil.rmtree(other, ignore_errors=True)
