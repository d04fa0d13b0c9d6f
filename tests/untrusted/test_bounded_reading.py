"""Files of a run that are none, or are longer than memory: refused at once, and nothing is waited for."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from proxyfl.core.checksum import is_intact, read_verified
from proxyfl.core.errors import RunError
from proxyfl.core.files import SHORT, begins_with, has_hash, read_bounded
from proxyfl.runs.directory import RunDirectory, read_json_lines
from proxyfl.runs.metrics_log import Mark, recorded, restore, verified

HUGE = 1 << 42
NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def make(kind: str, path: Path) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, HUGE)
    return path


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("pipe", "not a regular file"),
        ("device", "not a regular file"),
        ("folder", "is a folder where a file is expected"),
        ("huge", "4,398,046,511,104 bytes are more than"),
    ],
)
@pytest.mark.timeout(60)
def test_what_is_no_file_to_read_is_refused(kind: str, fault: str, tmp_path: Path) -> None:
    path = make(kind, tmp_path / "a")
    for read in (read_bounded, read_verified):
        with pytest.raises(RunError, match=fault):
            read(path)
    assert not is_intact(path)
    assert not has_hash(path, NOTHING)
    assert not begins_with(path, b"")
    assert read_json_lines(path) == []


def test_a_file_may_be_as_long_as_memory_holds_it_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    monkeypatch.setattr("proxyfl.core.files.usable_memory", lambda: 400)
    assert read_bounded(tmp_path / "a") == b"x" * 100
    with pytest.raises(RunError, match="100 bytes are more"):
        read_bounded(tmp_path / "a", 3)
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "b")


@pytest.mark.timeout(120)
def test_notes_of_gigabytes_are_not_read(tmp_path: Path) -> None:
    """A sparse file of five gigabytes would fit the memory of many machines; nobody's notes are that long."""
    run = RunDirectory(tmp_path)
    run.environment.touch()
    os.truncate(run.environment, 5 << 30)
    with pytest.raises(RunError, match=r"5,368,709,120 bytes, .*16,777,216"):
        run.noted()
    assert not has_hash(run.environment, NOTHING, SHORT)
    tracemalloc.start()
    assert not begins_with(run.environment, b"{")
    has_hash(tmp_path / "small", NOTHING)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_hash_is_taken_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", 64 << 20)
    tracemalloc.start()
    assert has_hash(tmp_path / "a", "3b6a07d0d404fab4e23b6d34bc6696a6a312dd92821332385e5af7c01c421351")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_beginnings_and_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert begins_with(tmp_path / "a", b"ab")
    assert not begins_with(tmp_path / "a", b"ab", whole=True)
    assert begins_with(tmp_path / "a", b"abc", whole=True)
    assert not begins_with(tmp_path / "a", b"abd", whole=True)
    assert has_hash(tmp_path / "a", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert not has_hash(tmp_path / "a", NOTHING)
    assert not has_hash(tmp_path / "b", NOTHING)


@pytest.mark.parametrize("name", ["metrics", "metrics_copy"])
def test_metrics_of_terabytes_are_taken_from_the_other_file_and_written_again(
    name: str, tmp_path: Path
) -> None:
    run, content = RunDirectory(tmp_path), b'{"round": 1}\n'
    run.checkpoints.mkdir()
    for file in (run.metrics, run.metrics_copy):
        file.write_bytes(content)
    os.truncate(getattr(run, name), HUGE)
    mark = Mark.of(content)
    assert recorded(run, [mark]) == verified(run, mark) == content
    restore(run, content)
    assert run.metrics.read_bytes() == run.metrics_copy.read_bytes() == content


def test_pipes_and_devices_in_a_run_are_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for folder in (run.checkpoints, run.clients):
        folder.mkdir()
    run.config.touch()
    run.require()
    make("pipe", run.clients / "pipe")
    run.require()  # what is kept for clients may be many files, and is looked at when the run is locked
    with pytest.raises(RunError, match="pipe is neither"), run.locked():
        pass
    (run.path / ".lock").unlink(missing_ok=True)
    (run.path / ".lock").symlink_to(run.clients / "pipe")  # a link that stays in the run
    with pytest.raises(RunError, match="lock is neither"):
        run.require()
