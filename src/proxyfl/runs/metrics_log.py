"""The metrics of a run: a line per round, in ``metrics.jsonl`` and again in a copy beside the checkpoints.
What is noted of single clients is kept in the same way, in ``clients.jsonl`` and its copy.

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

METRICS, CLIENTS = "metrics", "clients"
"""The logs of a run, as a checkpoint's manifest calls them."""


@dataclass(frozen=True)
class Mark:
    """How much of a log a checkpoint verifies."""

    size: int
    sha256: str

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 0 or not isinstance(self.sha256, str):
            raise ValueError("no length and hash of a log")

    @classmethod
    def of(cls, content: bytes) -> Mark:
        return cls(len(content), hashlib.sha256(content).hexdigest())

    def fits(self, content: bytes) -> bool:
        """Whether the content begins with what was marked."""
        return len(content) >= self.size and Mark.of(content[: self.size]) == self


class MetricsLog:
    """A log open for writing, after what a checkpoint verifies and nothing else."""

    def __init__(self, run: RunDirectory, content: bytes, log: str = METRICS) -> None:
        self.run, self.log, self.size = run, log, len(content)
        self._digest = hashlib.sha256(content)
        restore(run, content, log)

    def append(self, lines: bytes) -> None:
        for file in files(self.run, self.log) if lines else ():
            append_bytes(file, lines)
        self._digest.update(lines)
        self.size += len(lines)

    def mark(self) -> Mark:
        return Mark(self.size, self._digest.hexdigest())


def restore(run: RunDirectory, content: bytes, log: str = METRICS) -> None:
    """Make both files hold exactly this; a longer one is cut, one that differs is written again. A log of
    clients that holds nothing need not be there.
    """
    for file in files(run, log):
        found = _bytes(file)
        if found == content or (log == CLIENTS and not content and not os.path.lexists(file)):
            continue
        if found is not None and found.startswith(content):
            os.truncate(file, len(content))
        else:
            write_bytes(file, content)


def verified(run: RunDirectory, mark: Mark, log: str = METRICS) -> bytes:
    """What was marked, from whichever file still has it."""
    for file in files(run, log):
        content = _bytes(file) or b""
        if mark.fits(content):
            return content[: mark.size]
    raise RunError(f"{' and its copy '.join(map(str, files(run, log)))} are damaged")


def recorded(run: RunDirectory, marks: Sequence[Mark], log: str = METRICS) -> bytes:
    """The lines to read: what the first mark that fits verifies, and beyond it the whole lines on which
    both files agree. Where no mark is left, files that differ by more than the line that was being written
    say that one of them is damaged.
    """
    first, second = files(run, log)
    content, copy = _bytes(first) or b"", _bytes(second)
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
        raise RunError(f"{first} and its copy are damaged; see 'proxyfl validate {run.path}'")
    return agreed


def files(run: RunDirectory, log: str = METRICS) -> tuple[Path, Path]:
    """A log and its copy."""
    if log == CLIENTS:
        return run.client_log, run.client_log_copy
    return run.metrics, run.metrics_copy


def _agreed(one: bytes, other: bytes) -> bytes:
    """The whole lines with which both begin."""
    size = 0
    for line, same in zip(one.splitlines(keepends=True), other.splitlines(keepends=True), strict=False):
        if line != same or not line.endswith(b"\n"):
            break
        size += len(line)
    return one[:size]


def _bytes(file: Path) -> bytes | None:
    """The content; nothing where there is no file, or one that cannot be a log: too long, or a pipe."""
    try:
        return read_bounded(file, JSON_SWELLS)
    except (FileNotFoundError, RunError):
        return None
