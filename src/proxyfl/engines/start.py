"""The process that workers are forked from, and the first lines of a worker.

Started as ``python -m proxyfl.engines.start`` with one end of a connection, so it shares no code path with
the program that started it: a script needs no ``if __name__ == "__main__"``. It has one thread and computes
nothing, so a fork of it is as good as a new process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
from pathlib import Path

from proxyfl.engines.forkserver import FORK, OPEN_FILES, REPLY, REQUEST, RUNNING

PREFERRED_VICTIM = "500"
"""When memory runs out, a worker should be ended before its parent: it can be replaced."""

FORKS = sys.platform == "linux"
"""Whether a worker may use what its parent imported; elsewhere libraries of the system forbid it."""


def main() -> None:
    first, *others = map(int, sys.argv[1:])
    os.dup2(2, 1)  # what a plug-in prints must not get into the parent's output
    if others:
        _work(first, *others)
        return
    if FORKS:
        import proxyfl.engines.worker  # noqa: F401

        gc.freeze()  # a collection in a worker would copy all that it shares
    _serve(socket.socket(fileno=first))


def _serve(control: socket.socket) -> None:
    """Fork workers and say how they ended, until the other side is gone."""
    while True:
        request, fds, _, _ = socket.recv_fds(control, REQUEST.size, OPEN_FILES, socket.MSG_WAITALL)
        if len(request) < REQUEST.size:
            return
        what, options = REQUEST.unpack(request)
        if what == FORK:
            answer = os.fork()
            if not answer:
                control.close()
                _begin(fds)
            for fd in fds:
                os.close(fd)
        else:
            answer = _ended(what, options)
        control.sendall(REPLY.pack(answer))


def _begin(fds: list[int]) -> None:
    """A worker, from its first moment to its last."""
    if not FORKS:
        for fd in fds:
            os.set_inheritable(fd, True)
        os.execv(sys.executable, [sys.executable, "-P", "-m", "proxyfl.engines.start", *map(str, fds)])
    code = 1
    try:
        _work(*fds)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(channel: int, lifeline: int, store: int, broadcast: int, *answers: int) -> None:
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM, encoding="ascii")
    from proxyfl.engines.worker import serve

    serve(channel, store, broadcast, answers)


def _ended(pid: int, options: int) -> int:
    found, status = os.waitpid(pid, options)
    return os.waitstatus_to_exitcode(status) if found else RUNNING


def _end_with_parent(lifeline: int) -> None:
    os.set_blocking(lifeline, False)
    parent = os.getppid()
    while os.getppid() == parent:  # a process forked by the parent may hold the other end open
        with contextlib.suppress(BlockingIOError):
            if not os.read(lifeline, 1):  # nothing is ever written: this is the end of the parent
                break
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
