"""A process that lets copies of itself run the command line on a faulty disk, and kills them when asked.

It has imported everything, so a copy begins at once. A line of JSON on standard input asks for one: ``argv``,
``fault``, ``seconds`` until it is killed (or none), ``victim`` (``run``, or one ``worker`` of it), ``above``
(the process that starts the actors of a Ray cluster, or none). The answer
says with which ``code`` it ended (negative: the signal), how many ``operations`` of the disk it made if it
ended by itself, and what it ``said`` on standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from faulty_disk import Disk, Fault

from proxyfl import Experiment
from proxyfl.cli import app

PATIENCE = 900.0
"""Seconds after which a copy that should have ended by itself is called stuck."""


def play(request: dict[str, Any], notes: Path) -> int:
    """In the copy: the exit code of the command line."""
    disk = Disk(Fault(**request["fault"])).install()
    try:
        app(request["argv"], prog_name="proxyfl")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    print(f"operations {disk.operations}", file=sys.stderr, flush=True)
    return code


def perform(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "said"
        notes.touch()  # a copy may be killed before it has written anything
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            with notes.open("w") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
            os._exit(play(request, notes))
        started = time.monotonic()
        status, shot = wait(pid, request["seconds"], request["victim"], request["above"])
        seconds = time.monotonic() - started
        said = notes.read_text(errors="replace")
    head, found, count = said.rpartition("operations ")
    return {
        "code": os.waitstatus_to_exitcode(status),
        "operations": int(count) if found else None,
        "said": head if found else said,
        "seconds": seconds,
        "shot": shot,
    }


def wait(pid: int, seconds: float | None, victim: str, above: int | None) -> tuple[int, bool]:
    """The status with which a copy ended, and whether somebody was killed when the time was up."""
    started, shot = time.monotonic(), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, shot
        now = time.monotonic() - started
        if not shot and seconds is not None and now >= seconds:
            workers = trainers(pid) if above is None else actors(above)
            target = pid if victim == "run" else next(iter(workers), None)
            if target is not None:
                os.kill(target, signal.SIGKILL)
                shot = True
        if now > PATIENCE:
            os.kill(pid, signal.SIGABRT)
        time.sleep(0.0005)


def trainers(pid: int) -> list[int]:
    """The worker processes of a run, else the process that they will be forked from."""
    servers = children(pid)
    return [worker for server in servers for worker in children(server)] or servers


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def actors(raylet: int) -> list[int]:
    """The processes of a Ray cluster that train clients; each is called by its actor's class."""
    found = []
    for pid in children(raylet):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/cmdline").read_bytes()
            found += [pid] * (name.startswith(b"ray::") and not name.startswith(b"ray::IDLE"))
    return found


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # what is imported at the first step is imported now
        small = {"rounds": 1, "clients": 2, "per_round": 1, "subset": 20, "width": 1, "train__epochs": 1}
        Experiment("fedavg", "digits", **small).run(Path(folder) / "run", workers=0)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(perform(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
