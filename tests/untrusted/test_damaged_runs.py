"""One damaged run in a folder: every verb that looks at many names it and goes on with the others."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile_runs import make_run
from PIL import Image

from calling import invoke, known_place
from proxyfl.core.errors import RunError
from proxyfl.report.dashboard.watch import GrowingLines, Library

FILES = (
    *("config.toml", "environment.json", "partition.safetensors", "metrics.jsonl", "timing.jsonl"),
    *("events.jsonl", ".lock", "checkpoints/metrics.copy.jsonl", "checkpoints/best.safetensors"),
    *("clients.jsonl", "checkpoints/clients.copy.jsonl"),
    *("models/best.safetensors", "models/last.safetensors"),
)
FOLDERS = ("checkpoints", "snapshots", "models", "clients", "server")
QUICK = (
    "config.toml",
    "metrics.jsonl",
    "checkpoints/metrics.copy.jsonl",
    "models/last.safetensors",
    "checkpoints",
)
"""Places of every test run; `make test-full` tries all of them."""


def places(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def runs(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    known_place(monkeypatch, tmp_path)
    for name in ("bad", "good"):
        shutil.copytree(sound, tmp_path / "runs" / name)
    return tmp_path / "runs"


def taken_away(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def require_named(runs: Path, fault: str) -> None:
    """Every verb tells what is wrong with the bad run and what it knows of the good one."""
    listed = " ".join(invoke("ls", runs).stdout.split())
    assert "bad damaged" in listed
    assert "good digits" in listed
    assert "".join(fault.split()) in "".join(listed.split())  # a long path is broken anywhere
    table = invoke("table", runs)
    assert table.exit_code == 0, table.output
    assert f"note: left out, damaged: {runs / 'bad'}" in table.stderr
    report = invoke("report", runs / "bad", runs / "good", "-o", runs.parent / "page.html")
    assert report.exit_code == 0, report.output
    assert f"note: left out, damaged: {runs / 'bad'}" in report.stderr
    for words in (("show", runs / "bad"), ("report", runs / "bad"), ("validate", runs / "bad")):
        alone = invoke(*words)
        assert alone.exit_code == 2
        assert fault in alone.stderr
    told = {run["name"]: run for run in Library(runs).statuses()}
    assert fault in told["bad"]["problem"]
    assert told["bad"]["state"] == "damaged"
    assert told["good"]["done"] == 2


@pytest.mark.parametrize("place", places(FILES))
def test_a_folder_where_a_file_belongs(place: str, runs: Path) -> None:
    taken_away(runs / "bad" / place).mkdir()
    require_named(runs, f"{place} is a folder where a file belongs; move it away and put back")


@pytest.mark.parametrize("place", places(FOLDERS))
def test_a_file_where_a_folder_belongs(place: str, runs: Path) -> None:
    taken_away(runs / "bad" / place).write_text("a file")
    require_named(runs, f"{place} is a file where a folder belongs; move it away and put back")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("place", places(["metrics.jsonl", "checkpoints/metrics.copy.jsonl", "config.toml"]))
def test_a_pipe_where_a_file_belongs(place: str, runs: Path) -> None:
    os.mkfifo(taken_away(runs / "bad" / place))
    require_named(runs, f"{place} is neither a file nor a folder; put the file there")


@contextmanager
def as_nobody() -> Iterator[None]:
    """A user without rights, for a while."""
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becomes another user: root only")
def test_a_file_that_the_user_may_not_read(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with tempfile.TemporaryDirectory() as folder:  # every folder above it may be entered
        runs = Path(folder, "runs")
        for name in ("bad", "good", "worse"):
            shutil.copytree(sound, runs / name)
        for place in (runs.parent, runs, *runs.glob("*")):
            place.chmod(0o755)
        (runs / "bad" / "metrics.jsonl").chmod(0)
        (runs / "worse" / "checkpoints").chmod(0)
        words = (["ls", runs], ["table", runs], ["show", runs / "bad"])
        for each in words:
            invoke(*each)  # everything is imported before the user may read less
        with as_nobody():
            told = [invoke(*each) for each in words]
    assert [done.exit_code for done in told] == [0, 0, 2]
    fault = "metrics.jsonl cannot be read by this user; make it readable"
    assert all(fault in " ".join(done.output.split()) for done in told)
    assert "worse/checkpoints cannot be read by this user" in " ".join(told[1].stderr.split())


def test_metrics_that_are_damaged_inside(runs: Path) -> None:
    for file in ("metrics.jsonl", "checkpoints/metrics.copy.jsonl"):
        (runs / "bad" / file).write_text('{"round": 1}\n')
    table = invoke("table", runs)
    assert table.exit_code == 0, table.output
    assert f"note: left out, damaged: {runs / 'bad'}: " in table.stderr
    report = invoke("report", runs / "bad", runs / "good")
    assert report.exit_code == 0, report.output
    assert "left out, damaged" in report.stderr


@pytest.mark.timeout(60)
def test_a_growing_file_that_is_none_or_too_long(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    growing = GrowingLines(file)
    growing.refresh()
    os.mkfifo(file)
    with pytest.raises(RunError, match="not a regular file"):
        growing.refresh()
    file.unlink()
    file.write_text(json.dumps({"round": 1, "accuracy": 0.5}) + "\n" + "[" * 100_000 + "\n")
    growing.refresh()
    assert len(growing.lines) == 1
    os.truncate(file, 1 << 42)
    with pytest.raises(RunError, match="longer than memory"):
        growing.refresh()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becomes another user: root only")
def test_places_that_are_closed_to_the_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        for name in ("cats", "dogs"):
            (home / "images" / name).mkdir(parents=True)
            for number in range(4):
                Image.new("L", (8, 8)).save(home / "images" / name / f"{number}.png")
        words = (
            ["data", "check", f"folder:{home / 'images'}"],
            ["ls", home / "images"],
            ["show", home / "images" / "cats"],
        )
        for each in (*words, ["ls", "--nonesuch"]):  # what errors import may be closed to another user
            invoke(*each)
        (home / "images" / "dogs").chmod(0)
        with as_nobody():
            check, ls, show = (invoke(*each) for each in words)
        (home / "images").chmod(0)
        with as_nobody():
            closed = [invoke(*each) for each in words]
    assert (check.exit_code, ls.exit_code, show.exit_code) == (2, 0, 2)
    assert f"{home / 'images' / 'dogs'} is not accessible to this user" in check.stderr
    assert [done.exit_code for done in closed] == [2, 2, 2]
