"""The live board of many runs: which of them it shows."""

from __future__ import annotations

import json
from pathlib import Path

from proxyfl.cli.board import Board, Seen, look_at
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.sweep import Grid, jobs_of


def test_a_run_is_shown_from_its_first_step_on(tmp_path: Path) -> None:
    waiting, working = jobs_of(Grid(("fedavg", "fedprox"), common={"federation": {"rounds": 4}}), tmp_path)
    directory = RunDirectory(working.path)
    working.path.mkdir()
    board = Board([waiting, working])
    assert [bar.visible for bar in board.progress.tasks] == [False, False, True]
    with directory.locked():
        board.look({})
        assert [bar.visible for bar in board.progress.tasks] == [False, True, True]
        assert board.progress.tasks[1].fields["state"] == "in its first round"
        directory.metrics.write_text(json.dumps({"round": 1, "accuracy": 0.25}) + "\n")
        board.look({})
    bar = board.progress.tasks[1]
    assert (bar.visible, bar.completed, bar.fields["state"]) == (True, 1, "[green]25.00 %")


def test_lines_that_tell_no_accuracy_do_not_end_it(tmp_path: Path) -> None:
    metrics = RunDirectory(tmp_path).metrics
    metrics.write_text(json.dumps({"round": 1, "accuracy": 0.25}) + "\n")
    seen = look_at(tmp_path, Seen())
    metrics.write_text(metrics.read_text() + json.dumps({"round": 2}) + "\n")
    assert look_at(tmp_path, seen) == Seen(metrics.stat().st_size, 2, 0.25)
