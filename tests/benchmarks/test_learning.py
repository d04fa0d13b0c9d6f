"""Learning checks: every run has its row as soon as it ends, and is not made again."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from proxyfl.runs.batch import Job
from toybox import tiny_config

WORDS = ("--scenario", "server", "--methods", "server-only", "--side-by-side", "1", "--seeds")


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    found = importlib.import_module("learning")
    monkeypatch.setattr(found, "load_plugin", lambda name: None)  # what it registers would stay
    return found


@pytest.fixture
def check(learning: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def call(seeds: int) -> None:
        places = ["--output", str(tmp_path / "rows.csv"), "--runs", str(tmp_path / "runs")]
        monkeypatch.setattr("sys.argv", ["learning.py", *places, *WORDS, str(seeds)])
        learning.main()

    return call


def test_a_run_has_its_row_at_once_and_is_not_made_again(
    learning: ModuleType,
    check: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def job_of(name: str, where: str, seed: int, runs: Path) -> Job:
        config = tiny_config(name, scenario=where, seed=seed, rounds=1, subset=60, labels__per_class=2)
        return Job(name, config, runs / f"{name}-{seed}")

    monkeypatch.setattr(learning, "job_of", job_of)
    check(seeds=1)
    head, row = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.split(",") == ["scenario", *learning.MEASURED]
    assert row.startswith("server,server-only,1,fp32,1,")
    made = tmp_path / "runs" / "server-only-1"
    made.rename(tmp_path / "elsewhere")
    check(seeds=2)
    assert [path.name for path in made.parent.iterdir()] == ["server-only-2"]
    assert (tmp_path / "rows.csv").read_text().splitlines()[1] == row
    assert "1 of 1: server/server-only/2/fp32" in capsys.readouterr().out


def test_a_row_of_another_precision_does_not_count(
    learning: ModuleType, check: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "train", lambda jobs: {job.path: "not trained" for job in jobs})
    known = learning.job_of("server-only", "server", 1, tmp_path).config.compute.dtype
    rows = tmp_path / "rows.csv"
    head = ",".join(["scenario", *learning.MEASURED])
    rows.write_text(f"{head}\nserver,server-only,1,{known},15,0.9,0.9,0.9,0,a\n")
    check(seeds=1)
    rows.write_text(rows.read_text().replace(known, {"fp32": "bf16", "bf16": "fp32"}[known]))
    with pytest.raises(SystemExit, match="not trained"):
        check(seeds=1)
