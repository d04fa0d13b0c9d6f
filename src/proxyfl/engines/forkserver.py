"""The process that worker processes are forked from, as the process that wants them sees it.

It imports what workers need, once, and while this process does its own imports; a worker is then there at
once and shares what was imported. Nothing heavy is imported here, so that a command can begin with it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from proxyfl.core.errors import RunError

WORKERS = "PROXYFL_WORKERS"
"""The environment variable that says how many worker processes a run has where nobody says it."""

TUNABLES = "GLIBC_TUNABLES"
ALLOCATOR = {
    "glibc.malloc.hugetlb": "1",
    "glibc.malloc.mmap_threshold": str(4 << 30),
    "glibc.malloc.trim_threshold": str(16 << 30),
}
"""Large blocks are kept and used again instead of being mapped anew: page faults cost a third of the time."""

REQUEST, REPLY = struct.Struct("!qq"), struct.Struct("!q")
"""A request is (FORK, 0), with the worker's open files, or a process and the options of ``waitpid``. The
reply is the worker's process, or how it ended.
"""
FORK, RUNNING = 0, 1 << 32

ANSWERS = 2
"""Places in memory for the answers of a worker, which it uses in turn."""

OPEN_FILES = 4 + ANSWERS
"""That a worker is given: connection, lifeline, store, broadcast, and the places for its answers."""


def tuned_environment() -> dict[str, str]:
    """This process's environment with the allocator's settings, but for those the user has set."""
    given = dict(word.partition("=")[::2] for word in os.environ.get(TUNABLES, "").split(":") if word)
    tunables = ":".join(f"{name}={value}" for name, value in {**ALLOCATOR, **given}.items())
    return {**os.environ, TUNABLES: tunables}


def search_path() -> str:
    """Where this process finds modules, for a child; the empty entry means the current folder."""
    return os.pathsep.join(str(Path(place).absolute()) for place in sys.path)


class ForkServer:
    """One per engine, ended by :meth:`close` or with this process, and all its workers with it."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proxyfl.engines.start", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**tuned_environment(), "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which ends its workers
            )

    def fork(self, fds: Sequence[int]) -> Forked:
        """A worker with these :data:`OPEN_FILES`."""
        return Forked(self, self._ask(FORK, 0, fds))

    def ended(self, pid: int, options: int) -> int | None:
        """The exit code of a worker, negative for a signal; None while it runs."""
        code = self._ask(pid, options)
        return None if code == RUNNING else code

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.wait()

    def _ask(self, what: int, options: int, fds: Sequence[int] = ()) -> int:
        request, reply = REQUEST.pack(what, options), b""
        with contextlib.suppress(ConnectionError):
            socket.send_fds(self.control, [request], fds) if fds else self.control.sendall(request)
            reply = self.control.recv(REPLY.size, socket.MSG_WAITALL)
        if len(reply) == REPLY.size:
            return int(REPLY.unpack(reply)[0])
        raise Lost(self.process.wait())


class Lost(RunError):
    """The process that workers are forked from ended, with this exit code; negative is a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the process that worker processes are forked from ended ({ending(code)})")
        self.code = code


def ending(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Forked:
    """A forked worker, with what ``subprocess.Popen`` has for a process's own children."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self.server.ended(self.pid, options)
            except Lost:
                self.returncode = -signal.SIGKILL  # a worker ends with the process it was forked from
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        code = self.poll(0)
        assert code is not None
        return code


_early: list[ForkServer] = []


def start_early(workers: int | None) -> None:
    """For a command that will need ``workers`` processes, before it imports what it needs itself."""
    count = os.environ.get(WORKERS) if workers is None else str(workers)
    if os.name == "posix" and count != "0" and not _early:
        _early.append(ForkServer())
        atexit.register(dismiss)


def started() -> ForkServer:
    """The one that was started early, for the first who asks, else a new one."""
    return _early.pop() if _early else ForkServer()


def dismiss() -> None:
    """End the one that was started early: no worker is needed."""
    while _early:
        _early.pop().close()
