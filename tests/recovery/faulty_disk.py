"""A disk that fails at a chosen operation: everything that changes files is counted, wherever it comes from.

The functions of the system are replaced in the process that is to fail, so the program under test has no
hooks for this. What can happen, from operation ``at`` on:

========== ===================================================================================
kill       SIGKILL before, in the middle of, or after the operation
power      the same, and what was not flushed to the disk is lost
full       no room: a write stops in the middle; deleting and renaming still work
read-only  nothing can be changed
broken     flushing fails
slow       every operation takes its time
limit      the system's own limit on the size of files (``at`` is that size)
========== ===================================================================================
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WHEN = ("before", "during", "after")
SLOWNESS = 0.004


@dataclass(frozen=True)
class Fault:
    """What happens at which operation; ``when`` is for the kinds that end the process."""

    kind: str = "none"
    at: int = 0
    when: str = "before"


class Disk:
    """Stands between the program and the system's functions."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.operations = fault, 0
        self._unsynced: dict[tuple[int, int], tuple[int, int]] = {}

    def install(self) -> Disk:
        if self.fault.kind == "limit":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fault.at, hard))
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir", "truncate"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.fsync = self._fsync()
        Path.open = self._open(Path.open)  # type: ignore[method-assign, assignment]
        return self

    def step(self, what: str, act: Callable[[], Any], half: Callable[[], Any] = lambda: None) -> Any:
        """Do one operation, or what the fault makes of it."""
        self.operations += 1
        fault = self.fault
        if fault.kind == "none" or fault.kind == "limit" or self.operations < fault.at:
            return act()
        if fault.kind in ("kill", "power"):
            if fault.when == "after":
                act()
            elif fault.when == "during":
                half()
            self._die()
        if fault.kind == "full" and what in ("write", "open", "mkdir"):
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault.kind == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if fault.kind == "broken" and what == "fsync":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fault.kind == "slow":
            time.sleep(SLOWNESS)
        return act()

    def _die(self) -> None:
        if self.fault.kind == "power":
            for handle, size in self._unsynced.values():
                os.ftruncate(handle, size)
        os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: self.step(name, lambda: real(*given, **options))

    def _fsync(self) -> Callable[[int], None]:
        """Noted, not done: what a power cut would take is known from the notes, and real ones take long."""

        def fsync(handle: int) -> None:
            self.step("fsync", lambda: None)
            found = os.fstat(handle)
            kept = self._unsynced.pop((found.st_dev, found.st_ino), None)
            if kept is not None:
                os.close(kept[0])

        return fsync

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open_(path: Path, mode: str = "r", *given: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real(path, mode, *given, **options)
            before = path.stat().st_size if "a" in mode and path.exists() else 0
            file = self.step("open", lambda: real(path, mode, *given, **options))
            self._note(file.fileno(), before)
            return _File(self, file)

        return open_

    def _note(self, handle: int, size: int) -> None:
        """Remember how much of a file is safe on the disk, until all of it is."""
        found = os.fstat(handle)
        key = (found.st_dev, found.st_ino)
        if key not in self._unsynced:
            self._unsynced[key] = (os.dup(handle), size)


class _File:
    """An open file whose writes are operations of the disk."""

    def __init__(self, disk: Disk, file: Any) -> None:
        self._disk, self._file = disk, file

    def write(self, content: Any) -> Any:
        def half() -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        return self._disk.step("write", lambda: self._file.write(content), half)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
