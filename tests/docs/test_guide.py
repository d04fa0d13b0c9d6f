"""The guide to adding a method must run as it stands: its method, its test, its commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import proxyfl
from proxyfl.cli import app
from proxyfl.core.plugins import load_plugin
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
SOURCE = Path(proxyfl.__file__).parents[1]
"""Where the package under test was imported from: child processes must import the same one."""

GUIDE = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
SMALL = "--rounds 2 --clients 4 --per-round 2 --subset 120 --set train.epochs=1 --set train.batch=8".split()
TINY: dict[str, Any] = {"clients": 4, "per_round": 4, "subset": 120, "train__epochs": 1, "train__batch": 8}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("proxyfl ")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the guide's files, where its commands are given. What they register is forgotten."""
    (tmp_path / "graded.py").write_text(blocks("python")[0], encoding="utf-8")
    (tmp_path / "test_graded.py").write_text(blocks("python")[1], encoding="utf-8")
    for name in ("PROXYFL_RUNS", "PROXYFL_DATA", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PROXYFL_PLUGINS", "graded.py")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    return tmp_path


@pytest.fixture
def graded(place: Path) -> Any:
    load_plugin("graded.py")
    return sys.modules[registry.find("graded").method.__module__]


def run(*words: object, cwd: Path, **environment: str) -> str:
    line = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(line, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_method_is_as_short_as_the_title_says() -> None:
    assert len([line for line in blocks("python")[0].splitlines() if line.strip()]) == 25


def test_every_command_works(place: Path) -> None:
    given = commands()
    assert [words[0] for words in given] == "run run run ls run methods new-method".split()
    told = []
    for number, words in enumerate(given):
        more = [*SMALL, "--name", str(number)] if words[0] == "run" else []
        result = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        told.append(result.stdout)
    listed = told[3].splitlines()
    assert [line.split()[2] for line in listed[1:4]] == ["graded", "graded", "fixmatch-lpl"]
    assert all("2/2" in line for line in listed[1:4])
    assert "share of mean and variance kept each step" in told[5]
    assert (place / "my_method.py").is_file()
    refused = CliRunner().invoke(app, ["run", "--method", "graded", "--set", "method.keep=1.5"])
    assert refused.stderr == "error: method.keep = 1.5 is above 1\n"


@pytest.mark.slow
def test_the_test_passes(place: Path) -> None:
    assert "2 passed" in run("pytest", "-p", "no:cacheprovider", "test_graded.py", cwd=place)


def test_moments_follow_the_confidence_and_are_there_in_the_next_round(
    graded: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[tuple[int, int], list[float]] = {}
    begin = graded.Graded.begin

    def noted(self: Any, ctx: Any) -> None:
        begin(self, ctx)
        found[ctx.task.round, ctx.task.client] = ctx.state["moments"].tolist()

    monkeypatch.setattr(graded.Graded, "begin", noted)

    class Stop:
        def round_started(self, round: int, clients: list[int]) -> None: ...

        def answered(self, answer: Any) -> None: ...

        def round_finished(self, report: Any) -> None:
            if report.state.round == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        proxyfl.Experiment("graded", "digits", rounds=2, **TINY).run("stopped", [Stop()])
    saved = {
        int(file.parent.name): load_file(file)["moments"].tolist()
        for file in place.glob("stopped/clients/*/*/round-00000001.safetensors")
    }
    proxyfl.resume("stopped")
    for client in range(4):
        assert found[1, client] == torch.tensor([0.1, 1.0]).tolist()
        assert found[2, client] == saved[client]
        mean, variance = saved[client]
        assert mean > 0.1
        assert variance < 1.0


def test_the_weight_scales_each_images_loss(graded: Any) -> None:
    method = registry.create("graded")
    strong = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    label, weight = torch.tensor([0, 0]), torch.tensor([1.0, 0.25])
    pseudo = graded.Pseudo(label, weight == 1, weight=weight)
    # log(1 + e^-2) = 0.126928 and log(1 + e) = 1.313262; (0.126928 + 0.25 · 1.313262) / 2
    torch.testing.assert_close(method.unlabelled_loss(strong, pseudo), torch.tensor(0.227622))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_method_keeps_the_contract(place: Path) -> None:
    command = next(
        block.split() for block in blocks("console") if block.startswith("PYTHONPATH=. pytest -p graded ")
    )
    path = os.pathsep.join([str(place), str(SOURCE)])
    told = run(*command[1:], "-p", "no:cacheprovider", cwd=ROOT, PYTHONPATH=path, PROXYFL_PLUGINS="")
    assert int(re.search(r"(\d+) passed", told)[1]) >= 10  # type: ignore[index]
    assert "skipped" not in told
