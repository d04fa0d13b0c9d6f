"""A full or read-only disk: a clear error, nothing lost, and the same end once it is mended."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import proxyfl
from proxyfl.core.errors import RunError
from proxyfl.runs import checkpoint, manifests
from proxyfl.runs.directory import RunDirectory
from toybox import TINY

SETTINGS: dict[str, Any] = {**TINY, "rounds": 3, "subset": 80}


def made() -> proxyfl.Experiment:
    return proxyfl.Experiment("fixmatch-gpl", "digits", **SETTINGS)


def result(where: Path) -> dict[str, bytes]:
    newest = manifests.folders(RunDirectory(where))[0]
    files = [where / "metrics.jsonl", newest / "state.safetensors", *(where / "models").iterdir()]
    return {str(file.relative_to(where)): file.read_bytes() for file in files}


class Disk:
    """Counts calls of fsync; from call ``full_at`` on there is no room."""

    def __init__(self, patch: pytest.MonkeyPatch, full_at: int | None = None) -> None:
        self.calls, self.full_at, self.real = 0, full_at, os.fsync
        patch.setattr(os, "fsync", self.fsync)

    def fsync(self, handle: int) -> None:
        self.calls += 1
        if self.full_at is not None and self.calls >= self.full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.real(handle)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """The result of a run, and how often it flushed to the disk."""
    where = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        made().run(where)
    return result(where), disk.calls


def go_on(where: Path) -> None:
    run = RunDirectory(where)
    if where.exists() or (run.aside / "config.toml").exists():
        proxyfl.resume(where)
    else:
        made().run(where)


@pytest.mark.parametrize(
    "share",
    [
        *(0.0, 0.22, 0.75),
        *(
            pytest.param(share, marks=pytest.mark.slow)
            for share in (0.04, 0.1, 0.16, 0.3, 0.45, 0.6, 0.9, 0.999)
        ),
    ],
)
def test_a_disk_that_fills_up_at_any_moment(
    tmp_path: Path, undisturbed: tuple[dict[str, bytes], int], share: float
) -> None:
    expected, calls = undisturbed
    assert calls > 40
    where = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, full_at=1 + int(share * calls))
        with pytest.raises(RunError) as caught:
            made().run(where)
    message = str(caught.value)
    assert message.startswith(f"writing {where} failed: No space left on device")
    assert "\n" not in message
    if where.exists():
        assert "intact" in message
        assert message.endswith(f"'proxyfl resume {where}'")
    else:
        assert "nothing was created" in message
    go_on(where)
    assert result(where) == expected


def test_a_disk_that_fills_up_twice(tmp_path: Path, undisturbed: tuple[dict[str, bytes], int]) -> None:
    expected, calls = undisturbed
    where = tmp_path / "run"
    for full_at in (calls // 2, calls // 4):
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, full_at=full_at)
            with pytest.raises(RunError, match="No space left on device"):
                go_on(where)
    go_on(where)
    assert result(where) == expected


def test_a_full_disk_while_metrics_are_appended(
    tmp_path: Path, undisturbed: tuple[dict[str, bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line of metrics is on the disk when it is full."""
    where = tmp_path / "run"
    real, appended = Path.open, []

    def limited(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if self.name == "metrics.jsonl" and mode == "ab":
            appended.append(self)
            if len(appended) == 2:
                with real(self, "ab") as file:
                    file.write(b'{"round": 2, "accu')
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, mode, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", limited)
        with pytest.raises(RunError, match=r"intact\. Make room"):
            made().run(where)
    assert (where / "metrics.jsonl").read_bytes().endswith(b'"accu')
    proxyfl.resume(where)
    assert result(where) == undisturbed[0]


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as a user whom permissions do not stop, so the refusal is simulated."""
    where = tmp_path / "run"

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(RunError, match=f"{where} .*Read-only file system"):
            made().run(where)
    assert list(tmp_path.iterdir()) == []

    made().run(where)
    before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
    real = Path.open

    def reading_only(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        return real(self, mode, *rest, **options) if mode in ("r", "rb") else refuse()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", reading_only)
        with pytest.raises(RunError, match="Read-only file system"):
            proxyfl.resume(where)
        assert proxyfl.Run(where).summary.rounds == 3  # reading needs no writing
        proxyfl.Run(where).model("best")
    assert {path: path.read_bytes() for path in where.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX")
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["creation", "round 2"])
def test_files_that_the_system_really_cuts_short(
    tmp_path: Path, undisturbed: tuple[dict[str, bytes], int], moment: str
) -> None:
    """A limit on the size of files, set in a real process: writes stop in the middle."""
    where = tmp_path / "run"
    script = f"""
        import resource
        import proxyfl

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        class Limit:
            def round_started(self, round, clients):
                if round == 2:
                    limit()
            def answered(self, answer): pass
            def round_finished(self, report): pass

        observers = [Limit()]
        if {moment!r} == "creation":
            limit()
            observers = []
        try:
            proxyfl.Experiment("fixmatch-gpl", "digits", **{SETTINGS!r}).run({str(where)!r}, observers)
        except proxyfl.ProxyFLError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith(f"writing {where} failed: File too large; ")
    assert where.exists() == (moment != "creation")
    go_on(where)
    assert result(where) == undisturbed[0]


def test_nothing_else_is_called_a_disk_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "save", lambda *_, **__: [].pop())
    with pytest.raises(IndexError):
        made().run(tmp_path / "run")
