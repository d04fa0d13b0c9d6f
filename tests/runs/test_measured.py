"""Measures beside accuracy, from the round to every place that shows numbers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from proxyfl import Experiment, Run
from proxyfl.core.records import MEASURES
from proxyfl.report.html.gather import gather
from proxyfl.results.frames import rounds_frame
from proxyfl.runs.settings import identity
from toybox import Told, little_config
from written_runs import write_run

HAVE = [name for name in MEASURES if name != "top5"]
"""Digits have ten classes."""


def config(**more):
    return little_config("fedavg", rounds=2, data__subset=150, **more)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Path, Told]:
    where, told = tmp_path_factory.mktemp("measured") / "run", Told(None)
    Experiment(config=config(keep__metrics="all")).run(where, [told], workers=0)
    return where, told


def test_they_are_written_when_asked_for_and_change_nothing_else(played, tmp_path):
    plain = Experiment(config=config()).run(tmp_path / "plain", workers=0)
    lines = Run(played[0]).metrics
    for line, before in zip(lines, plain.metrics, strict=True):
        assert list(line["measures"]) == HAVE
        assert len(line["precision"]) == 10
        assert {name: line[name] for name in before} == before
        assert [*before] == [name for name in line if name not in ("measures", "precision")]
    assert identity(config()) == identity(config(keep__metrics="all"))


def test_everyone_who_shows_numbers_knows_them(played, capsys):
    from proxyfl.runs.loggers import scalars

    where, told = played
    line = Run(where).metrics[-1]
    assert scalars(told.reports[-1])["measures/macro_f1"] == line["measures"]["macro_f1"]
    frame = rounds_frame([Run(where)])
    assert frame["auroc"].iloc[-1] == line["measures"]["auroc"]
    page = gather([Run(where)])["runs"][0]
    assert page["curves"]["measures.ece"][-1] == pytest.approx(line["measures"]["ece"], rel=1e-4)
    assert len(page["precision"]["last"]) == 10


def test_eval_and_show(played, tmp_path):
    from typer.testing import CliRunner

    from proxyfl.cli import app

    where, _ = played
    value = f"macro-F1 {100 * Run(where).metrics[-1]['measures']['macro_f1']:.2f} %"
    for verb in ("eval", "show"):
        result = CliRunner().invoke(app, [verb, str(where)], env={"COLUMNS": "120"})
        assert result.exit_code == 0, result.output
        assert value in " ".join(result.output.split())
    assert "precision" in CliRunner().invoke(app, ["eval", str(where)], env={"COLUMNS": "120"}).output


def with_measures(path: Path, method: str, seed: int, values: dict[str, float]) -> Run:
    run = write_run(path, method, seed, [0.5, 0.6])
    lines = [json.loads(line) | {"measures": values} for line in run.directory.metrics.open()]
    run.directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_table_by_another_measure(tmp_path):
    from typer.testing import CliRunner

    from proxyfl.cli import app

    for method, f1, ece in (("fedavg", 0.3, 0.05), ("proxyfl", 0.4, 0.2)):
        with_measures(tmp_path / method, method, 1, {"macro_f1": f1, "ece": ece})

    def table(*more: str):
        return CliRunner().invoke(app, ["table", str(tmp_path), *more], env={"COLUMNS": "160"})

    shown = table("--metric", "macro-f1").stdout
    assert "macro-F1" in shown
    assert "40.00" in shown
    rows = [*csv.DictReader(io.StringIO(table("--metric", "ece", "--format", "csv").stdout))]
    assert {row["method"]: row["rank"] for row in rows} == {"fedavg": "1", "proxyfl": "2"}, "less is better"
    assert rows[0]["ece_mean"] == "0.05"
    lacking = table("--metric", "auroc")
    assert lacking.exit_code != 0
    assert "keep.metrics=all" in " ".join((lacking.stderr or lacking.output).split())
