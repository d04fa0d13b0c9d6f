"""The first lines of a worker process: how it ends is settled before anything that takes long is imported.

Started as ``python -m proxyfl.engines.start`` with the file descriptors it needs, so it shares no code path
with the program that started it: a script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

PREFERRED_VICTIM = "500"
"""When memory runs out, a worker should be ended before its parent: it can be replaced."""


def main() -> None:
    channel, lifeline, store, broadcast = map(int, sys.argv[1:])
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM, encoding="ascii")
    os.dup2(2, 1)  # what a plug-in prints must not get into the parent's output
    from proxyfl.engines.worker import serve

    serve(channel, store, broadcast)


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
