"""Flower's own programs as children of this one: started, listened to, and ended with all they started."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Self

from proxyfl.core import plugins
from proxyfl.core.errors import ProxyFLError, RunError, missing_extra
from proxyfl.deploy import launch, peers
from proxyfl.engines.flower.limits import PIECE
from proxyfl.engines.forkserver import tuned_environment

LOG_BYTES, LOG_FILES = 5_000_000, 2
"""A program's log is begun anew at this size, and so many older ones are kept."""

LINES = 500
"""How many of its last lines are searched for an error."""

PATIENCE = 10.0
"""Seconds a program has for ending itself before it is killed."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")

SPOKEN = "proxyfl: "
"""What lines begin with that this package's own code prints inside Flower's programs."""


def environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """For Flower's programs: nothing is sent anywhere, nothing is installed, their files go to ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    return {
        **tuned_environment(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        plugins.VARIABLE: os.pathsep.join(plugins.loaded),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # these listen past the guard
        "FLWR_INTERNAL_GRPC_FLEET_API": "0",
        "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE": str(PIECE),  # read by who makes a message, server and site
        "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES": "1",
        "FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PULLS": "1",
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


def find_program(name: str) -> str:
    """A program of the environment that this one runs in, else of the path."""
    place = Path(sys.executable).parent / name
    found = str(place) if place.is_file() else shutil.which(name)
    if found is None:
        raise missing_extra("flwr", "flower")
    return found


class PatientLog(RotatingFileHandler):
    """A log of bounded size; lines that cannot be written, as on a full disk, are let go without a word."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


class Program:
    """A child process whose output goes to a log; what this package prints in it is handed to ``hear``.

    It is on a leash: it and all that it started end with this process, whatever ends this one.
    """

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        hear: Callable[[str], None] = lambda line: None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log, self.hear = log, hear
        self.said: deque[str] = deque(maxlen=LINES)
        peers.require()
        self.leash, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            launch.command(list(words)),
            env={**env, launch.LEASH: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is for this program, which ends its children
        )
        theirs.close()
        self._pump = threading.Thread(target=self._listen, daemon=True)
        self._pump.start()

    def _listen(self) -> None:
        handler = PatientLog(self.log)
        assert self.process.stdout is not None
        with contextlib.closing(handler):
            for raw in self.process.stdout:
                line = raw.decode(errors="replace").rstrip()
                handler.emit(logging.LogRecord("", logging.INFO, "", 0, "%s", (line,), None))
                self.said.append(COLOUR.sub("", line))
                if line.startswith(SPOKEN):
                    with contextlib.suppress(OSError):  # a closed terminal must not stop the log
                        self.hear(line.removeprefix(SPOKEN))

    @property
    def ended(self) -> int | None:
        """Its exit code, when it has ended."""
        return self.process.poll()

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def guards(self, port: int, seconds: float = 5.0) -> bool:
        """Whether the program looks at who connects to its port: it must tell of this very connection."""
        with contextlib.suppress(OSError):
            self.leash.settimeout(0)
            while self.leash.recv(65536):
                pass
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), seconds) as probe:
            mine, received = f"{probe.getsockname()[1]}".encode(), b""
            self.leash.settimeout(seconds)
            while mine not in received.split(b"\n")[:-1]:
                more = self.leash.recv(65536)
                if not more:
                    return False
                received += more
            return True
        return False

    def failure(self, lines: int = 4) -> str:
        """What it said last that was an error, else its last lines: for an error message."""
        self._pump.join(timeout=2)
        said = list(self.said)
        errors = [place for place, line in enumerate(said) if line.startswith("ERROR")]
        first = errors[-1] if errors else -lines
        return " ".join(" ".join(said[first:][:lines]).split())

    def close(self) -> None:
        """End it; whoever does not go is killed, children included."""
        if self.ended is None:
            self.process.terminate()
            if self.wait(PATIENCE) is None:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.leash.close()
        self._pump.join(timeout=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_flwr(words: Sequence[str], env: Mapping[str, str], seconds: float = 120.0) -> dict[str, Any]:
    """A command of ``flwr`` that answers in JSON."""
    line = [find_program("flwr"), *words, "--format", "json"]
    try:
        done = subprocess.run(
            line, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"'flwr {words[0]}' gave no answer within {seconds:g} s; is the server up?") from None
    answer: Any = None
    with contextlib.suppress(ValueError):
        answer = json.loads(done.stdout[done.stdout.index("{") :])
    if not isinstance(answer, dict) or not answer.get("success"):
        said = answer.get("error-message") if isinstance(answer, dict) else None
        words_said = " ".join(str(said or done.stderr or done.stdout).split())[:400]
        raise FlowerError(f"'flwr {' '.join(words[:2])}' failed: {words_said}")
    return answer


class FlowerError(ProxyFLError):
    """What one of Flower's commands said."""


def wait_until(ready: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Whether it came true in time."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    return True
