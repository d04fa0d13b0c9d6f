"""What several tests of real federations share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def quick(monkeypatch):
    """Waiting takes no time."""
    from serving import hurry

    hurry(monkeypatch)


@pytest.fixture
def small():
    """A federation of three rounds that takes seconds."""
    from loopback import experiment

    sizes = {"rounds": 3, "per_round": 2, "subset": 80, "labels__per_class": 4, "keep__checkpoints": 9}
    return experiment("proxyfl", model__name="little", **sizes)


@pytest.fixture
def clock(tmp_path):
    """A variable with which a program has another time of day; see ``clock.c``."""
    source, library = Path(__file__).with_name("clock.c"), tmp_path / "clock.so"
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return f"LD_PRELOAD={library}"
