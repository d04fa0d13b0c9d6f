"""The scripts in ``examples/`` run, and show what they say."""

from __future__ import annotations

import runpy
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from proxyfl.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(name: str) -> Callable[..., None]:
    main: Callable[..., None] = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return main


def test_own_network(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("own_network")(rounds=1, workers=0)
    assert "SmallNet" in capsys.readouterr().out


@pytest.mark.slow
def test_own_aggregator(capsys: pytest.CaptureFixture[str]) -> None:
    main_of("own_aggregator")(rounds=1)
    assert "GeometricMedian(steps=5)" in capsys.readouterr().out


@pytest.mark.slow
def test_own_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("own_dataset")(tmp_path, rounds=1, workers=0)
    assert "round 1" in capsys.readouterr().out
    assert (tmp_path / "scans" / "config.toml").is_file()


def test_medmnist_like(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("medmnist_like")(tmp_path, rounds=1, workers=0)
    assert "12 clients, images of 8 pixels, chosen from the data" in capsys.readouterr().out


def test_natural_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("natural_clients")(tmp_path, rounds=1, workers=0)
    assert "north trains on " in capsys.readouterr().out


def test_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("vectors")(tmp_path, rounds=2, workers=0)
    said = capsys.readouterr().out
    assert "network mlp, 3 clients" in said
    assert "takes 30 features: mean radius, mean texture, mean perimeter, …" in said
    assert "the first patient is malignant" in said


@pytest.mark.slow
def test_odd_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("odd_client")(tmp_path, rounds=1, workers=0)
    assert "ward 5: score " in capsys.readouterr().out


@pytest.mark.slow
def test_frozen_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("frozen_encoder")(tmp_path, rounds=1, workers=0)
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["resnet8"] * 2 + [
        "linear",
        "adapter",
        "mlp",
    ]
    assert "648 train images encoded, 5 view(s) each" in said.err


@pytest.mark.slow
def test_text_topics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    script = runpy.run_path(str(EXAMPLES / "text_topics.py"))
    try:
        script["sources"]()
    except SystemExit as absent:
        pytest.skip(str(absent))
    script["main"](tmp_path, rounds=10, seeds=1, workers=0, most=25)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["fedavg", "fixmatch-gpl", "proxyfl"]
    assert all(float(row[1].rstrip("%")) > 20 for row in rows), rows  # chance is an eighth


def test_each_example_is_short_and_says_how_it_is_run() -> None:
    for file in EXAMPLES.glob("[a-z]*.py"):  # the numbered ones are notebooks
        lines = file.read_text(encoding="utf-8").splitlines()
        assert 20 <= len(lines) <= 60, file
        assert any(line.startswith(f"python examples/{file.name}") for line in lines), file


def test_the_job_for_slurm_is_sound_shell_and_calls_what_there_is() -> None:
    file = EXAMPLES / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(file)], capture_output=True).returncode == 0
    lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    (command,) = [line for line in lines if line.startswith("proxyfl ")]
    options = {word for word in command.split() if word.startswith("--")}
    known = {name for option in typer.main.get_command(app).commands["run"].params for name in option.opts}
    assert options <= known
