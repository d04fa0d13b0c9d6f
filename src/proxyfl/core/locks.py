"""Locks on files, which end with the process that holds them, however it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from proxyfl.core.errors import RunError


@contextlib.contextmanager
def held(path: Path, taken: str, *, remove: bool = True, patience: float = 1.0) -> Iterator[None]:
    """A file's lock. Whoever only looks at a run holds it for an instant, so it is tried for a second."""
    with path.open("a") as file:
        until = time.monotonic() + patience
        while not lock(file.fileno()):
            if time.monotonic() > until:
                raise RunError(f"{taken}; wait for it or stop it")
            time.sleep(0.02)
        try:
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)


def lock(handle: int) -> bool:
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
    import msvcrt

    try:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    except OSError:
        return False
    return True
