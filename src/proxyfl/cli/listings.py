"""Listings that follow from the program alone are made once: reading one takes less than importing torch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TextIO

LISTINGS = ("methods", "models", "comm")
"""Commands that are kept as they stand; with options, more than the program may decide what they print."""

BY_NAME = ("--method", "--fidelity", "--protocol")
"""Options of ``config`` that choose among what the program knows."""


def kept(words: Sequence[str], make: Callable[[], Any]) -> None:
    """Print the listing that these words ask for: as it was kept, else as ``make`` prints it."""
    from proxyfl.core.kept import keep, read

    place = _place(words)
    if place is None:
        make()
    elif text := read(place):
        _print(text)
    else:
        heard, noted = _Heard(sys.stdout), _Heard(sys.stderr)
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(noted):
            try:
                make()
            except SystemExit as end:
                if not end.code and not noted.parts:  # a note would be missing the next time
                    keep(place, "".join(heard.parts))
                raise


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
    """The file for a call: another one for another terminal."""
    if not _is_listing(words):
        return None
    from proxyfl.cli.common import out
    from proxyfl.core.kept import place

    console = out()
    colours = (console.color_system, console.no_color, console.is_terminal, console.legacy_windows)
    return place("listing", *words, console.width, console.encoding, *colours, sys.flags.optimize)


def _is_listing(words: Sequence[str]) -> bool:
    """Whether it is one of the listings, perhaps of a scenario, or describes a method, preset or settings."""
    if len(words) == 3 and tuple(words[:2]) == ("methods", "show"):
        return not words[2].startswith("-")
    if len(words) >= 3 and tuple(words[:2]) == ("config", "show"):
        return _is_preset(words[2]) and _by_name(words[3:])
    if tuple(words[:2]) == ("config", "explain"):
        section = len(words) > 2 and not words[2].startswith("-")
        return _by_name(words[2 + section :])
    if len(words) == 3 and words[0] in ("methods", "comm"):
        return words[1] == "--scenario" and not words[2].startswith("-")
    return len(words) == 1 and words[0] in LISTINGS


def _is_preset(name: str) -> bool:
    from proxyfl.runs.config_file import preset_names

    return name in preset_names()


def _by_name(options: Sequence[str]) -> bool:
    pairs = list(zip(options[::2], options[1::2], strict=False))
    return len(options) % 2 == 0 and all(key in BY_NAME and value[:1] != "-" for key, value in pairs)
