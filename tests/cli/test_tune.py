"""``proxyfl tune``: a search that can be stopped anywhere, and ends with a config to run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from calling import FLAGS, invoke
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.runs import tune
from proxyfl.runs.config_file import load_toml
from proxyfl.runs.settings import resolve

pytest.importorskip("optuna")

SEARCH = ["--search", "train.lr=0.001..0.3", "--search", "train.batch=8,16"]


def search(runs: Path, trials: int, *more: str) -> Any:
    words = [
        "tune",
        "digits",
        "--method",
        "fedavg",
        *SEARCH,
        *FLAGS,
        "--rounds",
        "2",
        "--trials",
        str(trials),
    ]
    return invoke(*words, "--trials", str(trials), "--runs", str(runs), *more)


def told(result: Any) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("trial ")]


@pytest.mark.filterwarnings("ignore:Target and region quantiles")
def test_a_search_that_was_stopped_goes_on_with_the_same_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "FEWEST", 4)
    whole = search(tmp_path / "whole", 4)
    assert whole.exit_code == 0, whole.stderr
    calls = 0
    finished = tune._Judge.round_finished

    def interrupted(self: Any, report: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:  # in the first round of the third trial
            raise KeyboardInterrupt
        finished(self, report)

    monkeypatch.setattr(tune._Judge, "round_finished", interrupted)
    stopped = search(tmp_path / "cut", 4)
    assert stopped.exit_code == 130
    assert "the same command continues the search" in stopped.stderr
    rest = search(tmp_path / "cut", 4)
    assert rest.exit_code == 0, rest.stderr
    assert told(stopped) + told(rest) == told(whole)
    best = [(tmp_path / name / "tune" / "best.toml") for name in ("whole", "cut")]
    assert len({resolve("", load_toml(file)).train for file in best}) == 1
    assert tomllib.loads(best[0].read_text())["data"]["validation"] == 0.1
    assert (tmp_path / "whole" / "tune" / "importance.png").is_file()


def test_a_trial_that_fails_is_told_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def fails(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RunError("the weights are no longer finite")

    monkeypatch.setattr(tune._Judge, "round_finished", fails)
    result = search(tmp_path, 2)
    assert result.exit_code == 0, result.stderr
    assert "failed: the weights are no longer finite" in told(result)[0]
    assert "validation accuracy" in told(result)[1]


def test_another_search_needs_another_name(tmp_path: Path) -> None:
    assert search(tmp_path, 1).exit_code == 0
    other = search(tmp_path, 1, "--search", "train.momentum=0.5..0.9")
    assert other.exit_code == 2
    assert "holds another search" in other.stderr


def test_trials_that_fall_behind_are_stopped_early(tmp_path: Path) -> None:
    config = resolve("digits", {"data": {"validation": 0.1}, "federation": {"rounds": 4}})
    found = tune.Search(tmp_path, [tune.Space("train.lr", 0.01, 0.1)], lambda _: config)
    optuna = tune._optuna()
    for place in range(tune.STARTUP):
        trial = found.study.ask()
        for round in range(1, 5):
            trial.report(0.5 + 0.01 * place, round)
        found.study.tell(trial, 0.5)
    judge = tune._Judge(found.study.ask(), 4)

    class Report:
        number, validation = 2, 0.1

    with pytest.raises(optuna.TrialPruned):
        judge.round_finished(Report())  # type: ignore[arg-type]
    found.study.tell(judge.trial, state=optuna.trial.TrialState.PRUNED)
    assert found.trials()[-1].score is None
    assert found.best().score == 0.5
    Report.validation = 0.9
    judge = tune._Judge(found.study.ask(), 4)
    judge.round_finished(Report())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train.lx=1..2", "unknown setting 'train.lx'"),
        ("train.lr=2..1", "must begin below its end"),
        ("train.lr=a..b", "is not a range"),
        ("train.lr", "has no bounds of its own"),
        ("data.name=a..b", "is not a number"),
        ("train.epochs=0.5..3", "is a whole number"),
    ],
)
def test_what_cannot_be_searched(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tune.read_space(text, resolve("digits"))


def test_ranges_come_from_the_text_or_from_the_setting() -> None:
    config = resolve("digits", {"method": {"name": "proxyfl"}})
    assert tune.read_space("train.lr=0.01..0.3", config) == tune.Space("train.lr", 0.01, 0.3)
    assert tune.read_space("train.lr=0.01..0.3", config).log
    assert tune.read_space("train.epochs=1..5", config) == tune.Space("train.epochs", 1, 5, whole=True)
    assert tune.read_space("train.batch=16,32", config).values == (16, 32)
    tau = tune.read_space("method.tau", config)
    assert (tau.low, tau.high) == (0, 1)
    assert tune.read_space("train.schedule", config).values == ("constant", "cosine", "step")
    assert tune.read_space("train.nesterov", config).values == (False, True)


def test_values_that_no_trial_could_have_are_refused_before_the_first(tmp_path: Path) -> None:
    refused = search(tmp_path, 1, "--search", "train.momentum=-0.5..0.9")
    assert refused.exit_code == 2
    assert "train.momentum = -0.5" in refused.stderr
    assert not (tmp_path / "tune").exists()


def test_without_validation_images_nothing_is_judged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="validation"):
        tune.Search(tmp_path, [tune.Space("train.lr", 0.01, 0.1)], lambda _: resolve("digits"))


def test_a_cluster_is_named_as_for_a_run(tmp_path: Path) -> None:
    refused = search(tmp_path, 1, "--address", "auto")
    assert refused.exit_code == 2
    assert "add --engine ray" in refused.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_trials_on_a_ray_cluster_have_the_same_scores(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here = search(tmp_path / "here", 2)
    there = search(tmp_path / "there", 2, "--engine", "ray", "--address", "local", "--workers", "2")
    assert there.exit_code == 0, there.stderr
    assert told(there) == told(here)
