"""A run that goes on with another arithmetic says so, or is refused where that was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from calling import invoke
from proxyfl.core import provenance
from proxyfl.core.errors import RunError
from toybox import Stopped, Told

SETTINGS: dict[str, Any] = {"clients": 3, "per_round": 2, "rounds": 2, "width": 1, "subset": 90}


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A run of two rounds that was stopped after the first."""
    with pytest.raises(Stopped):
        proxyfl.Experiment("fedavg", "digits", **SETTINGS).run(tmp_path / "run", [Told(stop_after=1)])
    return tmp_path / "run"


def rewrite(run: Path, **changes: Any) -> None:
    file = run / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_the_same_arithmetic_is_exact(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noted = proxyfl.Run(half).environment
    assert noted["numerics"] == provenance.NUMERICS
    assert noted["instructions"] == provenance.instructions()
    proxyfl.resume(half, exact=True)
    assert "bits" not in capsys.readouterr().err


def test_another_torch_is_told_once(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rewrite(half, versions={"torch": "1.13.0"})
    proxyfl.resume(half)
    assert capsys.readouterr().err.count("torch 1.13.0, now ") == 1
    proxyfl.resume(half, exact=True)  # it is finished: nothing is computed any more
    assert capsys.readouterr().err == ""


def test_where_it_must_be_exact_the_run_is_left_as_it_is(half: Path) -> None:
    rewrite(half, instructions="riscv64 DEFAULT")
    before = {
        file: file.read_bytes() for file in half.rglob("*") if file.is_file() and file.suffix != ".lock"
    }
    for more in ((), ("--rounds", 4)):
        done = invoke("resume", half, "--exact", *more)
        assert done.exit_code == 2
        assert "processor riscv64 DEFAULT, now " in done.stderr
    assert all(file.read_bytes() == content for file, content in before.items())
    assert invoke("resume", half).exit_code == 0


def test_a_new_version_of_the_arithmetic(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "NUMERICS", 2)
    with pytest.raises(RunError, match="numerics 1, now 2"):
        proxyfl.resume(half, exact=True)


def test_runs_of_before_it_was_counted(half: Path) -> None:
    file = half / "environment.json"
    noted = json.loads(file.read_text())
    del noted["numerics"], noted["instructions"]
    file.write_text(json.dumps(noted))
    proxyfl.resume(half, exact=True)


def test_notes_that_cannot_be_read(half: Path) -> None:
    (half / "environment.json").write_text("{")
    with pytest.raises(RunError, match=r"environment\.json cannot be read"):
        proxyfl.resume(half, exact=True)
    proxyfl.resume(half)
