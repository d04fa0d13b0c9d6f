"""Which lines of the metrics are read when nothing verifies them any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyfl.core.errors import RunError
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.metrics_log import Mark, recorded

LINES = [b'{"round":1}\n', b'{"round":2}\n', b'{"round":3}\n']
ALL = b"".join(LINES)


def written(folder: Path, content: bytes, copy: bytes) -> RunDirectory:
    run = RunDirectory(folder)
    for file, text in ((run.metrics, content), (run.metrics_copy, copy)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text)
    return run


@pytest.mark.parametrize("copied", [LINES[2], LINES[2][:5], b""], ids=["whole", "torn", "nothing"])
def test_without_a_mark_both_files_are_believed_up_to_the_line_being_written(
    tmp_path: Path, copied: bytes
) -> None:
    run = written(tmp_path, ALL, ALL[: -len(LINES[2])] + copied)
    assert recorded(run, []) == (ALL if copied == LINES[2] else b"".join(LINES[:2]))


@pytest.mark.parametrize(
    ("content", "copy"),
    [(LINES[0] + bytes(20), ALL), (ALL, LINES[0] + bytes(20)), (ALL, LINES[0]), (LINES[0], ALL)],
)
def test_without_a_mark_files_that_differ_by_more_are_damaged(
    tmp_path: Path, content: bytes, copy: bytes
) -> None:
    with pytest.raises(RunError, match="damaged"):
        recorded(written(tmp_path, content, copy), [])


def test_with_a_mark_the_file_that_fits_is_read(tmp_path: Path) -> None:
    assert recorded(written(tmp_path, LINES[0] + bytes(20), ALL), [Mark.of(ALL)]) == ALL
