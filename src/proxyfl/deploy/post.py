"""One command at a time looks after a server or a site: a lock, and the number of the process that has it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.files import write_bytes
from proxyfl.core.locks import held
from proxyfl.runs.directory import RunDirectory, readable_errors

PRIVATE = 0o700


@dataclass(frozen=True)
class Post:
    """What ``proxyfl deploy server`` or ``site`` holds while it runs, also while it starts a program again.

    ``state`` is the folder in which the two of a kind would get in each other's way.
    """

    state: Path
    who: str

    @property
    def place(self) -> Path:
        return self.state / "supervisor"

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Raise where another process is at the post, before anything is touched.

        What is written meanwhile, logs and decoded images among it, is for its owner alone.
        """
        before = os.umask(0o077)
        try:
            with readable_errors(self.state, "nothing that was saved is lost", "start this again"):
                private(self.place)
                with self._held():
                    yield
        finally:
            os.umask(before)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        number = self.process()
        by = f", as process {number}" if number else ""
        with held(self.place / ".lock", f"{self.who} is running already{by}", remove=False):
            private(self.state)
            write_bytes(self.place / "pid", f"{os.getpid()}\n".encode())
            yield

    def is_taken(self) -> bool:
        return RunDirectory(self.place).is_locked()

    def process(self) -> int | None:
        """Who took the post last."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.place / "pid").read_text(encoding="ascii"))
        return None


def private(folder: Path) -> Path:
    """The folder, made for its owner alone, and closed to others where it was open."""
    folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(PRIVATE)
    return folder
