"""Runs one of Flower's programs for its user alone and for no longer than whoever started it lives.

``python -m proxyfl.deploy.launch flower-supernode …`` is started by :class:`proxyfl.deploy.programs.Program`,
which holds the other end of a leash. When that end is gone, by ``kill -9``, too, this process and all that
it started are gone. What it starts of Flower's is started the same way. Connections of other users are reset.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from importlib import metadata
from typing import Any

from proxyfl.deploy import peers

LEASH, TOKEN = "PROXYFL_LEASH", "PROXYFL_TASK_TOKEN"
"""Environment: the leash's file number, and a task's secret, which others could read on a command line."""


TASKS = ("flwr-clientapp", "flwr-serverapp")
"""Programs that work on one task. What goes wrong in them ends that task, not who started them."""


def command(words: list[str]) -> list[str]:
    """How a program is started; the current folder is no place for its modules."""
    return [sys.executable, "-P", "-m", "proxyfl.deploy.launch", *words]


def programs() -> dict[str, metadata.EntryPoint]:
    """Flower's programs by name."""
    found = metadata.distribution("flwr").entry_points.select(group="console_scripts")
    return {entry.name: entry for entry in found}


class Leashed(subprocess.Popen[Any]):
    """``Popen`` that starts Flower's programs on the same leash, their secrets out of others' sight."""

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        if isinstance(args, list) and args and args[0] in programs():
            words, env = list(args), dict(options.pop("env", None) or os.environ)
            if "--token" in words[:-1]:
                place = words.index("--token")
                env[TOKEN] = words[place + 1]
                del words[place : place + 2]
            args, options["env"] = command(words), env
            options["pass_fds"] = (*options.get("pass_fds", ()), int(env[LEASH]))
        super().__init__(args, *rest, **options)


def hold(leash: socket.socket) -> None:
    """End this process and its group when the other end of the leash is gone."""

    def watch() -> None:
        with contextlib.suppress(OSError):  # a reset, where the other end had not read all that was sent
            while leash.recv(4096):
                pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="leash", daemon=True).start()


def one_line(args: threading.ExceptHookArgs) -> None:
    """Say that a thread of a task ended. A SuperNode's log holds its tasks' words, too: a traceback in it is
    the SuperNode's own, for which it is started again.
    """
    name, kind = args.thread.name if args.thread else "a thread", args.exc_type.__name__
    print(f"task: {name} ended: {kind}: {' '.join(str(args.exc_value).split())}", file=sys.stderr, flush=True)


def main() -> None:
    name, *words = sys.argv[1:]
    os.umask(0o077)  # databases and logs are for their owner
    leash = socket.socket(fileno=int(os.environ[LEASH]))
    hold(leash)
    if name == "gate":  # it looks at certificates instead of users
        from proxyfl.deploy import gate

        return gate.main(words)

    def seen(port: int) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            leash.send(f"{port}\n".encode(), socket.MSG_DONTWAIT)

    peers.require()
    peers.guard_all(seen)
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # it would accept connections past the guard
    subprocess.Popen = Leashed  # type: ignore[misc]
    if name in TASKS:
        threading.excepthook = one_line
    if name == "flower-supernode":
        from proxyfl.deploy import replies

        replies.in_order()
    if secret := os.environ.pop(TOKEN, ""):
        words += ["--token", secret]
    entry = programs()[name].load()
    sys.argv = [name, *words]
    sys.exit(entry())


if __name__ == "__main__":
    main()
