"""SIGKILL and a failing disk, again and again: the run ends with the same bits as one never disturbed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from siege import METHODS, Engine, Siege, Stage

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and SIGKILL")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as opened:
        yield opened


def besieged(stage: Stage, folder: Path, method: str, workers: int, kills: int) -> Siege:
    expected = Siege(stage, folder / "inline", method, Engine(), seed=0).undisturbed()
    siege = Siege(stage, folder / "siege", method, Engine(workers), seed=2024)
    assert siege.undisturbed() == expected  # whichever engine computes it
    siege.endure(kills, expected)
    assert siege.happened["killed"] == kills
    assert siege.finished >= 1
    return siege


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == "fedloke" else pytest.mark.slow) for name in METHODS]
)
def test_killed_again_and_again(stage: Stage, tmp_path: Path, method: str) -> None:
    siege = besieged(stage, tmp_path, method, workers=0, kills=3 if method == "fedloke" else 7)
    assert len(set(siege.rounds_at_kill)) >= 2, siege.rounds_at_kill


@pytest.mark.slow
def test_killed_again_and_again_with_worker_processes(stage: Stage, tmp_path: Path) -> None:
    besieged(stage, tmp_path, "fedloke", workers=1, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_killed_more_often_with_worker_processes(stage: Stage, tmp_path: Path, method: str) -> None:
    besieged(stage, tmp_path, method, workers=2, kills=10)
