"""A run does not grow with its rounds: memory, open files, threads, bytes written. 150 rounds of it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def long_run(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("stage", "long_run"):
        sys.modules.pop(name, None)
    return importlib.import_module("long_run")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what Linux tells about a process")
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_grows(long_run: ModuleType, tmp_path: Path, workers: int) -> None:
    lines = long_run.watch("flexmatch", workers, 150, tmp_path)
    assert len(lines) == 150
    rows = long_run.compare(lines, early=40, window=20)
    ratio = {name.split(" (")[0]: float(value) for name, _, _, value in rows}
    assert ratio["open files"] <= 1
    assert ratio["threads"] <= 1
    assert ratio["memory"] < 1.05
    # A line of metrics differs by a few digits; the metrics of all rounds would be some hundred kilobytes.
    assert ratio["written"] < 1.02


def test_growth_is_seen(long_run: ModuleType) -> None:
    lines = [dict.fromkeys(long_run.QUANTITIES, float(number)) for number in range(1, 301)]
    rows = {row[0].split(" (")[0]: row[1:] for row in long_run.compare(lines)}
    assert rows["open files"] == ["125", "300", "2.400"]
    assert rows["CPU time"][2] == f"{275.5 / 100.5:.3f}"
