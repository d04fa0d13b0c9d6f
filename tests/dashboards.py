"""Dashboards that answer while a test asks them: in a thread, and as the program that a user starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxyfl.report.dashboard.server import Dashboard
from proxyfl.report.dashboard.watch import Federation


@contextmanager
def answering(
    folder: Path, every: float, only: str | None = None, federation: Federation | None = None
) -> Iterator[Dashboard]:
    made = Dashboard(folder, every=every, only=only, federation=federation)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.stop()
        thread.join(10)
    assert not thread.is_alive()


def require_page(words: list[str]) -> None:
    """The dashboard as a program: it answers at the address that it prints, and ends with Ctrl-C."""
    line = [sys.executable, "-m", "proxyfl", *words, "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address.replace("/run?", "/api/run?")) as answer:
            assert [run["name"] for run in json.load(answer)["runs"]] == ["run"]
        with urllib.request.urlopen(address.replace("/run?", "/api/runs?")) as answer:
            assert [run["name"] for run in json.load(answer)["runs"]] == ["run"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
