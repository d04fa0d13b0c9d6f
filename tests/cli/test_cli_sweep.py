"""``proxyfl sweep`` and ``proxyfl compare``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from calling import FLAGS
from proxyfl import Experiment, Run
from proxyfl.cli import app
from proxyfl.cli.board import Board
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.sweep import Grid, jobs_of


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def compare(folder: Path, *flags: object) -> Result:
    return call("compare", "fedavg", "--runs", folder, "--rounds", 2, *FLAGS, *flags)


def test_compare_makes_what_is_missing_and_skips_what_is_done(tmp_path: Path) -> None:
    result = compare(tmp_path, "--alpha", "0.1,1")
    assert result.exit_code == 0, result.output
    assert "2 of 2 runs to train" in result.stderr
    assert "fedavg · alpha 1 · seed 1: finished, accuracy" in result.stderr
    assert f"proxyfl table {tmp_path}" in result.stdout
    runs = [path for path in tmp_path.iterdir() if path.is_dir()]
    times = {path: (path / "metrics.jsonl").stat().st_mtime_ns for path in runs}
    assert len(runs) == 2
    assert "0 of 2 runs to train" in compare(tmp_path, "--alpha", "0.1,1").stderr
    assert {path: (path / "metrics.jsonl").stat().st_mtime_ns for path in runs} == times
    alone = Experiment(config=Run(runs[0]).config).run(tmp_path / "alone", workers=0)
    for file in ("metrics.jsonl", "models/last.safetensors"):  # side by side or alone, the same bits
        assert (alone.path / file).read_bytes() == (runs[0] / file).read_bytes()
    listed = compare(tmp_path, "--alpha", "0.1,1", "--seeds", "2,1", "--dry-run").stdout
    assert (listed.count("to do"), listed.count("done ")) == (2, 2)


@pytest.mark.slow
def test_methods_of_a_scenario_are_compared(tmp_path: Path) -> None:
    words = ["compare", "semifl,flfl,server-only", "--scenario", "server", "--seeds", 2, "--runs", tmp_path]
    result = call(*words, "--rounds", 1, *FLAGS)
    assert result.exit_code == 0, result.output
    runs = [Run(path) for path in tmp_path.iterdir() if path.is_dir()]
    assert len(runs) == 6
    assert {run.config.labels.where for run in runs} == {"server"}
    assert {bool(run.metrics[0]["clients"]) for run in runs if run.config.method.name == "server-only"} == {
        False
    }


@pytest.mark.slow
def test_a_failing_run_is_told_and_the_rest_is_made(tmp_path: Path) -> None:
    words = ["--runs", tmp_path, "--rounds", 2, *FLAGS, "--vary", "train.lr=0.05,1e30"]
    result = call("compare", "fedavg", *words)
    assert result.exit_code == 2
    assert "1 of 2 runs failed" in result.stderr
    assert "fedavg · lr 1e+30 · seed 1: failed: " in result.stderr
    assert sum(Run(path).finished for path in tmp_path.iterdir()) == 1


@pytest.mark.slow
def test_what_lies_in_the_way_of_a_run_is_to_be_moved_away(tmp_path: Path) -> None:
    (job,) = jobs_of(Grid(("fedavg",), common={"federation": {"rounds": 2}}), tmp_path)
    job.path.mkdir()
    result = call("compare", "fedavg", "--runs", tmp_path, "--rounds", 2)
    assert result.exit_code == 2
    assert f"{job.path} is not a run" in " ".join(result.stderr.split())
    assert "proxyfl ls" not in result.stderr


def test_sweep_reads_a_grid_and_lists_it(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("methods = 'fedavg'\nseeds = 2\n[vary]\nlabel_ratio = [0.1, 0.2]\n", encoding="utf-8")
    result = call("sweep", grid, "--runs", tmp_path / "runs", "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("to do  fedavg · label_ratio 0.1 · seed 2  ")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "fedavg", "--seeds", "x"], "--seeds x must be"),
        (["compare", "fedavg", "--seeds", "0"], "--seeds 0 selects no run"),
        (["compare", ","], "names nothing"),
        (["compare", "fedavg,fedavgg"], "unknown method 'fedavgg'; did you mean"),
        (["compare", "fedavg", "--vary", "tau"], "must be like method.tau=0.9,0.95"),
        (["compare", "fedavg", "--vary", "train.lrr=1"], "unknown setting 'train.lrr'"),
        (["compare", "fedavg", "--vary", "seed=1,2"], "--vary seed=1,2: 'seed' cannot be given as a setting"),
        (["compare", "fedavg", "--set", "seed=3"], "use --seeds 1,2, or seeds = [1, 2] in a grid file"),
        (["compare", "fedavg", "--vary", "method=fedavg,sage"], "'proxyfl compare A,B', or methods = "),
        (["compare", "fedavg", "--vary", "method.name=sage"], "'proxyfl compare A,B', or methods = "),
        (["compare", "fedavg", "--vary", "data=digits"], "use --data A,B, or data = "),
        (
            ["compare", "fedavg", "--alpha", "0.1", "--vary", "partition.alpha=1"],
            "'partition.alpha' is given twice: --alpha 0.1 and --vary partition.alpha=1; keep one",
        ),
        (
            ["compare", "fedavg", "--vary", "train.lr=0.1", "--vary", "train.lr=1"],
            "'train.lr' is given twice: --vary train.lr=0.1 and --vary train.lr=1",
        ),
        (
            ["compare", "fedavg", "--rounds", "3", "--set", "federation.rounds=5"],
            "'federation.rounds' is given twice: --set federation.rounds=5 and --rounds 3",
        ),
        (
            ["sweep", "none.toml"],
            "none.toml does not exist; give a grid file; 'proxyfl sweep --help'",
        ),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_the_board_counts_rounds_and_tells_the_time_left(tmp_path: Path) -> None:
    first, second = jobs_of(Grid(("fedavg", "fedprox"), common={"federation": {"rounds": 4}}), tmp_path)
    board = Board([first, second])
    metrics = RunDirectory(first.path).metrics
    metrics.parent.mkdir()
    metrics.write_text(json.dumps({"round": 1, "accuracy": 0.25}) + '\n{"round": 2, "accu')
    board.started -= 10
    board.look({})
    bar, _, whole = board.progress.tasks
    assert (bar.completed, bar.total, bar.fields["state"]) == (1, 4, "[green]25.00 %")
    assert (whole.completed, whole.total) == (1, 8)
    assert whole.fields["state"].startswith("0 of 2 runs done, about 1:10 min left")
    board.look({second.path: "Traceback\nValueError: bad"})
    assert board.progress.tasks[1].fields["state"] == "[red]failed"
    assert "about 30" in board.progress.tasks[2].fields["state"]
