"""The fuzzer's targets: they start, and say so where the fuzzer is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from readers import READERS

SCRIPT = Path(__file__).with_name("fuzz_readers.py")
HERE = importlib.util.find_spec("atheris") is not None


def start(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
def test_every_reader_is_a_target(tmp_path: Path) -> None:
    assert start(tmp_path, "--list").stdout.split() == list(READERS)


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="atheris is installed")
def test_without_the_fuzzer_it_says_so(tmp_path: Path) -> None:
    done = start(tmp_path, "npz", "1")
    assert done.returncode == 1
    assert "atheris is not installed" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="atheris is not installed")
@pytest.mark.parametrize("name", READERS)
def test_a_second_of_fuzzing(name: str, tmp_path: Path) -> None:
    done = start(tmp_path, name, "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []
