"""The metrics of a run: a line per round, in ``metrics.jsonl`` and again in a copy beside the checkpoints.

Both files are only added to, and flushed to the disk before the checkpoint that verifies them with a
length and a hash. So a checkpoint costs as much after ten thousand rounds as after ten; whatever is younger
than it is cut off on a resume; and where one file is damaged, the other has the same lines.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.errors import RunError
from proxyfl.core.files import JSON_SWELLS, append_bytes, read_bounded, write_bytes
from proxyfl.runs.directory import RunDirectory


@dataclass(frozen=True)
class Mark:
    """How much of the metrics a checkpoint verifies."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 0 or not isinstance(self.sha256, str):
            raise ValueError("no length and hash of metrics")

    @classmethod
    def of(cls, content: bytes) -> Mark:
        return cls(len(content), hashlib.sha256(content).hexdigest())

    def fits(self, content: bytes) -> bool:
        """Whether the content begins with what was marked."""
        return len(content) >= self.size and Mark.of(content[: self.size]) == self


class MetricsLog:
    """Metrics open for writing, after what a checkpoint verifies and nothing else."""

    def __init__(self, run: RunDirectory, content: bytes) -> None:
        self.run, self.size = run, len(content)
        self._digest = hashlib.sha256(content)
        restore(run, content)

    def append(self, line: bytes) -> None:
        for file in _files(self.run):
            append_bytes(file, line)
        self._digest.update(line)
        self.size += len(line)

    def mark(self) -> Mark:
        return Mark(self.size, self._digest.hexdigest())


def restore(run: RunDirectory, content: bytes) -> None:
    """Make both files hold exactly this; a longer one is cut, one that differs is written again."""
    for file in _files(run):
        found = _bytes(file)
        if found == content:
            continue
        if found is not None and found.startswith(content):
            os.truncate(file, len(content))
        else:
            write_bytes(file, content)


def verified(run: RunDirectory, mark: Mark) -> bytes:
    """What was marked, from whichever file still has it."""
    for file in _files(run):
        content = _bytes(file) or b""
        if mark.fits(content):
            return content[: mark.size]
    raise RunError(f"{run.metrics} and its copy {run.metrics_copy} are damaged")


def recorded(run: RunDirectory, marks: Sequence[Mark]) -> bytes:
    """The metrics to read: what the first mark that fits verifies, and beyond it the whole lines on which
    both files agree. Where no mark is left, files that differ by more than the line that was being written
    say that one of them is damaged.
    """
    content, copy = _bytes(run.metrics) or b"", _bytes(run.metrics_copy)
    for mark in marks:
        if mark.fits(content):
            beyond = content[mark.size :]
            return content[: mark.size] + (beyond if copy is None else _agreed(beyond, copy[mark.size :]))
        if copy is not None and mark.fits(copy):
            return copy[: mark.size]
    agreed = content if copy is None else _agreed(content, copy)
    rest, copied = content[len(agreed) :], b"" if copy is None else copy[len(agreed) :]
    one_line_ahead = rest.startswith(copied) and b"\n" not in rest[:-1]
    if marks or (not agreed and (content or copy)) or not one_line_ahead:
        raise RunError(f"{run.metrics} and its copy are damaged; see 'proxyfl validate {run.path}'")
    return agreed


def _agreed(one: bytes, other: bytes) -> bytes:
    """The whole lines with which both begin."""
    size = 0
    for line, same in zip(one.splitlines(keepends=True), other.splitlines(keepends=True), strict=False):
        if line != same or not line.endswith(b"\n"):
            break
        size += len(line)
    return one[:size]


def _files(run: RunDirectory) -> tuple[Path, Path]:
    return run.metrics, run.metrics_copy


def _bytes(file: Path) -> bytes | None:
    """The content; nothing where there is no file, or one that cannot be metrics: too long, or a pipe."""
    try:
        return read_bounded(file, JSON_SWELLS)
    except (FileNotFoundError, RunError):
        return None
