"""Says what to do when Ray ends this process: it does so without an exception where its own have gone."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence

WATCH = """
import socket, sys
words, *places = sys.argv[1:]
if not sys.stdin.buffer.read():  # ended without a farewell
    for host, _, port in [place.rpartition(":") for place in places]:
        try:
            socket.create_connection((host.strip("[]"), int(port)), 2).close()
        except OSError:
            sys.exit(words)
"""
"""The error is printed only if Ray is silent: whoever kills the command knows what happened."""


class Witness:
    """A process that outlives this one for a moment, and prints an error if this one ends while one of the
    places (HOST:PORT) does not answer.
    """

    def __init__(self, words: str, places: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", WATCH, f"error: {words}", *places],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the command
        )

    def end(self) -> None:
        """This process ends, or disconnects, by itself."""
        with contextlib.suppress(OSError):  # it was killed
            self._process.communicate(b"farewell")
