"""Following many runs at once: a bar for each, moved by what it has written; elsewhere a line per run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from proxyfl.cli.common import err
from proxyfl.core.text import duration, percent

if TYPE_CHECKING:
    from rich.progress import TaskID

    from proxyfl.runs.batch import Job

SHOWN = 24
"""Bars that fit a screen: with more runs, finished ones leave it."""


@dataclass(frozen=True)
class Seen:
    """How far a run was when it was last looked at; ``size`` is that of its metrics file."""

    size: int = 0
    rounds: int = 0
    accuracy: float | None = None


class Board:
    """One live table of runs, with a bar for each that has begun, the sum of all and the time left."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self.jobs, self.failed = jobs, dict[Path, str]()
        self.seen = {job.path: look_at(job.path, Seen()) for job in jobs}
        self.console = err()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"), TextColumn("{task.fields[state]}"),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.bars: dict[Path, TaskID] = {}
        for job in jobs:
            self.bars[job.path] = self.progress.add_task(job.name, total=job.rounds, visible=False, state="")
        self.whole = self.progress.add_task(
            "[bold]all rounds", total=sum(job.rounds for job in jobs), state=""
        )
        self.started, self.before = time.monotonic(), self._played()
        self._move()

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def look(self, failed: dict[Path, str]) -> None:
        """Read what is new, and tell who failed since the last look."""
        for job in self.jobs:
            before, now = self.seen[job.path], look_at(job.path, self.seen[job.path])
            self.seen[job.path] = now
            if self.progress.disable and before.rounds < now.rounds == job.rounds:
                reached = "" if now.accuracy is None else f", accuracy {percent(now.accuracy)}"
                self.console.print(f"{job.name}: finished{reached}", markup=False)
            if job.path in failed and job.path not in self.failed:
                self.failed[job.path] = failed[job.path]
                reason = failed[job.path].strip().splitlines()[-1]
                self.console.print(f"{job.name}: failed: {reason}", style="red", markup=False, soft_wrap=True)
        self._move()

    def _played(self) -> int:
        return sum(seen.rounds for seen in self.seen.values())

    def _move(self) -> None:
        for job in self.jobs:
            seen = self.seen[job.path]
            done, failed = seen.rounds >= job.rounds, job.path in self.failed
            begun = seen.rounds > 0 or is_working(job.path)
            state = "not measured yet" if seen.rounds else "in its first round"
            state = state if seen.accuracy is None else f"[green]{percent(seen.accuracy)}"
            self.progress.update(
                self.bars[job.path],
                completed=seen.rounds,
                state="[red]failed" if failed else state,
                visible=(begun and (len(self.jobs) <= SHOWN or not done)) or failed,
            )
        ready = sum(self.seen[job.path].rounds >= job.rounds for job in self.jobs)
        state = f"{ready} of {len(self.jobs)} runs done{self._left()}"
        self.progress.update(self.whole, completed=self._played(), state=state)

    def _left(self) -> str:
        """From the pace since this process began."""
        played = self._played() - self.before
        missing = sum(
            job.rounds - self.seen[job.path].rounds for job in self.jobs if job.path not in self.failed
        )
        if not played or not missing:
            return ""
        seconds = (time.monotonic() - self.started) / played * missing
        return f", about {duration(round(seconds))} left"


def is_working(path: Path) -> bool:
    """Whether a process is writing in this run, as it does before its first round is over."""
    from proxyfl.runs.directory import RunDirectory

    return path.is_dir() and RunDirectory(path).is_locked()


def look_at(path: Path, before: Seen) -> Seen:
    """A run's last rounds, read again only when its metrics file has grown."""
    from proxyfl.runs.directory import RunDirectory, measured, read_json_lines

    metrics = RunDirectory(path).metrics
    size = metrics.stat().st_size if metrics.exists() else 0
    if size == before.size:
        return before
    lines = read_json_lines(metrics)
    accuracy = next((line["accuracy"] for line in reversed(measured(lines))), None)
    return Seen(size, len(lines), accuracy if isinstance(accuracy, float) else before.accuracy)
