"""A run that goes on with another arithmetic says so, or is refused where that was asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from calling import invoke
from proxyfl.core import provenance
from proxyfl.core.errors import RunError
from proxyfl.federation.loop import Observer
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.exact import OTHER
from toybox import Stopped, Told

SETTINGS: dict[str, Any] = {
    "clients": 3, "per_round": 2, "rounds": 2, "width": 1, "subset": 90, "dtype": "fp32",
}  # fmt: skip


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
    assert noted["instructions"] == provenance.instructions(proxyfl.Run(half).config.compute)
    proxyfl.resume(half, exact=True)
    assert "bits" not in capsys.readouterr().err


def test_for_bf16_what_older_versions_recorded_is_not_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        proxyfl.Experiment("fedavg", "digits", **{**SETTINGS, "dtype": "bf16"}).run(run, [Told(stop_after=1)])
    short = " ".join(proxyfl.Run(run).environment["instructions"].split()[:2])
    rewrite(run, instructions=short)
    with pytest.raises(RunError, match="bf16=not-recorded, now "):
        proxyfl.resume(run, exact=True)
    proxyfl.resume(run)
    assert capsys.readouterr().err.count("bf16=not-recorded, now ") == 1


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
    there = provenance.NUMERICS
    monkeypatch.setattr(provenance, "NUMERICS", there + 1)
    with pytest.raises(RunError, match=f"numerics {there}, now {there + 1}"):
        proxyfl.resume(half, exact=True)


def test_runs_of_before_it_was_counted(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = half / "environment.json"
    noted = json.loads(file.read_text())
    del noted["numerics"], noted["instructions"]
    file.write_text(json.dumps(noted))
    with pytest.raises(RunError, match=f"numerics 1, now {provenance.NUMERICS}"):
        proxyfl.resume(half, exact=True)
    monkeypatch.setattr(provenance, "NUMERICS", 1)
    proxyfl.resume(half, exact=True)


def test_notes_that_cannot_be_read(half: Path) -> None:
    (half / "environment.json").write_text("{")
    with pytest.raises(RunError, match=r"environment\.json cannot be read"):
        proxyfl.resume(half, exact=True)
    proxyfl.resume(half)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has another processor from here on."""
    monkeypatch.setattr(provenance, "instructions", lambda *_: "riscv64 DEFAULT")


def events(run: Path) -> list[dict[str, Any]]:
    return [line for line in proxyfl.Run(run).events if line["event"] == OTHER]


def test_what_happened_in_between_is_not_forgotten(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        elsewhere(patch)
        with pytest.raises(Stopped):
            proxyfl.resume(half, [Told(stop_after=2)], rounds=3)
    (event,) = events(half)
    assert (event["round"], "now riscv64 DEFAULT" in event["reason"]) == (1, True)
    with pytest.raises(RunError, match=r"after round 1 .*now riscv64 DEFAULT"):
        proxyfl.resume(half, exact=True)
    proxyfl.resume(half)
    assert len(events(half)) == 1, "nothing new happened"


def test_rounds_that_did_not_count_are_no_reason_to_refuse(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AtOnce(Observer):
        def round_started(self, round: int, clients: list[int]) -> None:
            raise Stopped

    with monkeypatch.context() as patch:
        elsewhere(patch)
        with pytest.raises(Stopped):
            proxyfl.resume(half, [AtOnce()], rounds=4)
    assert len(events(half)) == 1
    with pytest.raises(Stopped):
        proxyfl.resume(half, [Told(stop_after=2)], exact=True)
    proxyfl.resume(half, exact=True)


def test_events_that_are_not_as_they_are_written(half: Path) -> None:
    with (half / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "resumed", "round": None}) + "\n")
        file.write(json.dumps({"event": OTHER, "round": "0", "reason": ["x"]}) + "\n")
    with pytest.raises(RunError, match="after round 0"):
        proxyfl.resume(half, exact=True)


@pytest.mark.parametrize("left", [None, "", '{"event": "resumed", "round": 1}\n'])
def test_where_the_events_are_lost_nobody_knows(half: Path, left: str | None) -> None:
    (half / "events.jsonl").unlink()
    if left is not None:
        (half / "events.jsonl").write_text(left)
    with pytest.raises(RunError, match=r"events\.jsonl is lost"):
        proxyfl.resume(half, exact=True)
    proxyfl.resume(half)


def test_events_are_on_the_disk_before_what_follows(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    RunDirectory(half).event(OTHER, round=1, reason="")
    assert flushed == [(half / "events.jsonl").stat().st_ino]


def federation(**options: Any) -> proxyfl.Federation:
    data = proxyfl.load_dataset("digits")
    split = proxyfl.partition(data, clients=4, per_class=4)
    train = proxyfl.Train(epochs=1, batch=32, lr=0.05)
    return proxyfl.Federation(
        data, split, network="resnet8", width=1, method="fedavg", rounds=2, per_round=2, train=train,
        workers=0, dtype="fp32", **options,
    )  # fmt: skip


def test_a_federation_of_objects_says_and_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    next(federation().record(run).rounds(1))
    federation().resume(run, exact=True)
    with monkeypatch.context() as patch:
        elsewhere(patch)
        with pytest.raises(RunError, match="now riscv64 DEFAULT"):
            federation().resume(run, exact=True)
        assert events(run) == []
        federation().resume(run).run()
    assert capsys.readouterr().err.count("now riscv64 DEFAULT") == 1
    assert [event["round"] for event in events(run)] == [1]
    federation().resume(run, exact=True).run()  # it is finished
