"""Runs with a validation split choose by it and report on test images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from proxyfl import Experiment, Run, resume
from proxyfl.cli import app
from proxyfl.report.html.gather import gather
from proxyfl.results.choice import choose
from proxyfl.results.outcome import read
from proxyfl.runs.settings import identity
from toybox import Stopped, Told, little_config
from written_runs import write_run


def config(**more):
    return little_config("fixmatch-lpl", rounds=3, data__subset=300, **more)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("validated") / "run"
    Experiment(config=config(data__validation=0.2)).run(where, workers=0)
    return where


def test_rounds_are_chosen_on_validation_images(played):
    run = Run(played)
    lines = run.metrics
    best = max(lines, key=lambda line: line["validation"]["accuracy"])
    assert (run.summary.best_round, run.summary.best) == (best["round"], best["accuracy"])
    assert run.summary.chosen_on == "validation"
    assert run.model("best").card.round == best["round"]
    page = gather([run])["runs"][0]
    assert (page["summary"]["best_round"], page["summary"]["chosen_on"]) == (best["round"], "validation")
    assert identity(config()) != identity(config(data__validation=0.2))


def test_the_warning_is_for_runs_without(played, tmp_path):
    Experiment(config=config()).run(tmp_path / "without", workers=0)
    for where, warned in ((played, False), (tmp_path / "without", True)):
        result = CliRunner().invoke(app, ["eval", str(where), "--model", "best"])
        assert ("chosen on these test images" in result.output) is warned
        shown = CliRunner().invoke(app, ["table", str(where), "--metric", "best"], env={"COLUMNS": "160"})
        assert ("chosen on the test data" in shown.output) is warned


def test_resume_is_exact(played, tmp_path):
    with pytest.raises(Stopped):
        Experiment(config=config(data__validation=0.2)).run(tmp_path / "run", [Told(2)], workers=0)
    (tmp_path / "run" / "partition.safetensors").unlink()
    resume(tmp_path / "run", workers=0)
    for file in ("metrics.jsonl", "partition.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (played / file).read_bytes()
    assert Run(tmp_path / "run").model("best").card == Run(played).model("best").card


def written(path: Path, lr: float, test: float, validation: float | None, seed: int = 1) -> Run:
    run = write_run(path, "fedavg", seed, [0.1, test], train__lr=lr, keep__last_rounds=1)
    more = {} if validation is None else {"validation": {"accuracy": validation}}
    lines = [json.loads(line) | more for line in run.directory.metrics.open()]
    run.directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_settings_are_selected_on_validation_images(tmp_path):
    runs = [written(tmp_path / "a", 0.1, 0.9, 0.5), written(tmp_path / "b", 0.05, 0.7, 0.6)]
    kept, notes = choose([*map(read, runs)], ["train.lr"])
    assert [outcome.run.path.name for outcome in kept] == ["b"]
    (note,) = notes
    assert "train.lr = 0.05, of 2 choices, chosen on validation" in note
    result = CliRunner().invoke(app, ["table", str(tmp_path), "--select", "train.lr"])
    assert result.exit_code == 0, result.output
    assert "70.00" in result.output
    assert "90.00" not in result.output


def test_without_validation_images_the_choice_is_called_optimistic(tmp_path):
    runs = [written(tmp_path / "a", 0.1, 0.9, 0.5), written(tmp_path / "b", 0.05, 0.7, None)]
    kept, notes = choose([*map(read, runs)], ["train.lr"])
    assert [outcome.run.path.name for outcome in kept] == ["a"]
    assert "optimistic" in notes[0]
