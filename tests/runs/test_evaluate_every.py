"""A run that measures accuracy every second round: nobody invents a number for the others."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from proxyfl import Experiment, Run
from proxyfl.cli import app
from proxyfl.cli.board import Seen, look_at
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.paper.results import result
from proxyfl.report.curves import accuracy_curves, draw_curves
from proxyfl.report.html.gather import gather
from proxyfl.results.outcome import read
from proxyfl.runs.directory import measured
from proxyfl.runs.experiment import resume
from proxyfl.runs.export import load_model
from proxyfl.runs.loggers import scalars
from proxyfl.runs.progress import LiveProgress
from proxyfl.runs.schema import require_records
from proxyfl.runs.settings import resolve
from toybox import Stopped, Told, little_config
from written_runs import write_run


def play(where: Path, stop_after: int | None = None, every: int = 2) -> Told:
    config = little_config(
        "fixmatch-gpl", rounds=5, data__subset=150, keep__snapshot_every=1, federation__evaluate_every=every
    )
    told = Told(stop_after)
    if stop_after is None:
        Experiment(config=config).run(where, [told])
    else:
        with pytest.raises(Stopped):
            Experiment(config=config).run(where, [told])
    return told


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    where = tmp_path_factory.mktemp("played") / "run"
    return where, play(where)


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped before its first measured round."""
    where = tmp_path_factory.mktemp("early") / "run"
    play(where, stop_after=1)
    return where


@pytest.fixture
def run(played: tuple[Path, Told], tmp_path: Path) -> Run:
    return Run(shutil.copytree(played[0], tmp_path / "run"))


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def test_unmeasured_rounds_have_no_accuracy_and_all_else_is_as_it_was(run: Run, tmp_path: Path) -> None:
    assert [line["round"] for line in run.metrics if "accuracy" in line] == [2, 4, 5]
    assert [line["round"] for line in run.metrics if "per_class" in line] == [2, 4, 5]
    assert "null" not in run.directory.metrics.read_text()
    assert ["confusion" in run.snapshot(round) for round in range(1, 6)] == [False, True, False, True, True]

    play(tmp_path / "all", every=1)
    full = Run(tmp_path / "all")
    assert len(measured(full.metrics)) == 5
    assert measured(run.metrics) == [full.metrics[k] for k in (1, 3, 4)]
    unmeasured = full.metrics[0]
    for name in ("accuracy", "per_class"):
        del unmeasured[name]
    assert run.metrics[0] == unmeasured


@pytest.mark.parametrize("stop_after", [1, 3])
def test_it_resumes_to_the_same_bits(run: Run, tmp_path: Path, stop_after: int) -> None:
    play(tmp_path / "stopped", stop_after)
    resume(tmp_path / "stopped")
    for name in ("metrics.jsonl", "models/best.safetensors", "models/last.safetensors"):
        assert (tmp_path / "stopped" / name).read_bytes() == (run.path / name).read_bytes(), name


def test_damaged_models_are_mended(tmp_path: Path) -> None:
    play(tmp_path / "run", stop_after=3)
    files = [tmp_path / "run" / "models" / f"{name}.safetensors" for name in ("best", "last")]
    before = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(b"nothing")
    with pytest.raises(Stopped):
        resume(tmp_path / "run", [Stopper()])
    assert [file.read_bytes() for file in files] == before


class Stopper(Told):
    """Ends a run before it plays a round."""

    def round_started(self, round: int, clients: list[int]) -> None:
        raise Stopped(round)


def test_the_summary_and_the_best_model_are_of_measured_rounds(run: Run) -> None:
    values = {line["round"]: line["accuracy"] for line in measured(run.metrics)}
    summary = run.summary
    assert (summary.rounds, summary.measured) == (5, 3)
    assert summary.mean_last == sum(values.values()) / 3
    assert summary.last == values[5]
    assert (summary.best, values[summary.best_round]) == (max(values.values()),) * 2
    card = run.model("best").card
    assert (card.round, card.accuracy) == (summary.best_round, summary.best)


def test_a_card_without_accuracy_loads(early: Path) -> None:
    card = load_model(early / "models" / "last.safetensors").card
    assert (card.round, card.accuracy) == (1, None)
    assert not (early / "models" / "best.safetensors").exists()


def test_before_the_first_measured_round_nothing_is_told_of_accuracy(early: Path) -> None:
    with pytest.raises(RunError, match=r"federation\.evaluate_every"):
        _ = Run(early).summary
    shown = call("show", early)
    assert shown.exit_code == 0, shown.output
    assert "federation.evaluate_every = 2" in shown.output
    row = next(line for line in call("ls", early.parent).output.splitlines() if "1/5" in line)
    assert "–" in row
    assert "%" not in row
    table = call("table", early, "--partial")
    assert "left out, not finished" in table.output
    assert "1 of 5 rounds" in table.output
    assert call("eval", early).exit_code == 0
    assert call("validate", early).exit_code == 0, call("validate", early).output
    assert look_at(early, Seen()).accuracy is None
    page = gather([Run(early)])["runs"][0]
    assert (page["accuracy"], page["done"], page["summary"]) == (None, 1, {})
    assert "not evaluated in round 1" in page["notes"]["confusion"]


def test_show_ls_and_table_read_it(run: Run) -> None:
    shown = call("show", run.path).output
    assert "accuracy, mean of last 3 measured" in shown
    assert "test accuracy, rounds 2 to 5" in shown
    rows = [line.split() for line in shown.splitlines() if line.split()[:1] in (["3"], ["4"])]
    assert [row[1] for row in rows] == ["–", f"{100 * run.metrics[3]['accuracy']:.2f}"]
    mean = f"{100 * run.summary.mean_last:.2f}"
    assert mean in call("ls", run.path.parent).output
    for words in (("table", run.path), ("validate", run.path), ("eval", run.path)):
        done = call(*words)
        assert done.exit_code == 0, done.output
    assert mean in call("table", run.path).output
    assert call("resume", run.path).exit_code == 0
    assert look_at(run.path, Seen()) == Seen(run.directory.metrics.stat().st_size, 5, run.summary.last)


def test_rounds_to_an_accuracy_are_counted_in_rounds(run: Run) -> None:
    found = read(run)
    assert [round for round, _ in found.curve] == [2, 4, 5]
    assert (found.rounds_to(0.0), found.rounds_to(1.1), found.tail) == (2, None, 3)


def test_curves_have_points_where_it_was_measured(run: Run, tmp_path: Path) -> None:
    *_, data = accuracy_curves({"fixmatch-gpl": [run]}, tmp_path / "accuracy")
    with data.open(newline="") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["2", "4", "5"]
    figure = draw_curves({"a": np.array([[math.nan, 20, math.nan, 40, math.nan]])}, "Test accuracy")
    line = figure.axes[0].lines[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([2, 4], [20, 40])


def test_runs_without_a_measured_round_in_common_are_not_drawn(early: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="round in common"):
        accuracy_curves({"fixmatch-gpl": [Run(early)]}, tmp_path / "accuracy")


def test_a_page_has_the_last_measured_accuracy(run: Run) -> None:
    page = gather([run])["runs"][0]
    assert [value is None for value in page["curves"]["accuracy"]] == [True, False, True, False, False]
    assert page["per_class"]["rounds"] == [2, 4, 5]
    assert page["accuracy"] == pytest.approx(run.summary.last, rel=1e-4)
    assert page["summary"]["tail"] == 3


def test_of_a_long_run_measured_rounds_are_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", "fedavg", 1, [0.5] * 1000, federation__evaluate_every=7)
    lines = run.metrics
    for line in lines:
        if line["round"] % 7 and line["round"] < 1000:
            del line["accuracy"]
    run.directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = gather([run])["runs"][0]["curves"]["accuracy"]
    assert sum(value is not None for value in curve) == len(measured(lines)) == 143


def test_loggers_and_the_progress_hear_of_measured_rounds_only(played: tuple[Path, Told]) -> None:
    reports = played[1].reports
    assert ["accuracy" in scalars(report) for report in reports] == [False, True, False, True, True]
    where = Console(file=(file := io.StringIO()), force_terminal=False, width=200)
    with LiveProgress(where, 5, before=[None]) as follower:
        for report in reports[1:]:
            follower.round_started(report.state.round, [])
            follower.round_finished(report)
    lines = file.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["2/5", "3/5", "4/5", "5/5"]
    assert ["accuracy" in line for line in lines] == [True, False, True, True]


def test_the_papers_tables_want_every_round(run: Run) -> None:
    with pytest.raises(RunError, match=r"3 of its 5 rounds, .*evaluate_every = 1"):
        result(SimpleNamespace(), SimpleNamespace(path=run.path))  # type: ignore[arg-type]


def test_no_number_is_not_a_number() -> None:
    line = {"round": 1, "traffic": {"bytes_up": 1, "bytes_down": 1}}
    require_records([line])
    with pytest.raises(ValueError, match="accuracy of a round"):
        require_records([{**line, "accuracy": None}])
    with pytest.raises(ConfigError, match="evaluate_every = 0 is below 1"):
        resolve("digits", {"federation": {"evaluate_every": 0}})
