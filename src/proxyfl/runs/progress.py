"""Rounds as they are played: a live bar in a terminal, a line per round elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from proxyfl.core.text import duration, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task
    from rich.text import Text

    from proxyfl.core.state import Failure, Update
    from proxyfl.federation.loop import RoundReport

WORDS = 70
"""Columns that the words beside the bar may need."""


class LiveProgress:
    """An observer that shows rounds, the round's clients, last and best accuracy and the time left.

    Failed clients are always reported. ``before`` are the accuracies of rounds played by an earlier process,
    None for those that were not measured.
    """

    def __init__(
        self, console: Console, rounds: int, before: Sequence[float | None] = (), *, quiet: bool = False
    ) -> None:
        self.console, self.rounds, self.quiet = console, rounds, quiet
        self.live = console.is_terminal and not quiet
        self.done_before = len(before)
        scored = [accuracy for accuracy in before if accuracy is not None]
        self.last = scored[-1] if scored else None
        self.best = max(scored, default=None)
        self.validation: float | None = None
        self.round, self.answers, self.expected = len(before), 0, 0
        self.started = self.updated = time.monotonic()
        self.bars: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def round_started(self, round: int, clients: list[int]) -> None:
        self.round, self.answers, self.expected = round, 0, len(clients)
        self.round_began = time.monotonic()
        # The bar begins here and not earlier: reading the data may have shown a bar of its own.
        if self.live and self.bars is None:
            self.started = time.monotonic()
            self.bars = self._new_bars()
            self.bars.start()
        self._show(round - 1)

    def answered(self, answer: Update | Failure) -> None:
        reason = getattr(answer, "reason", None)
        if reason is not None:
            line = f"round {answer.round}: client {answer.client} failed: {' '.join(reason.split())}"
            self.console.print(line, style="yellow", markup=False, soft_wrap=True)
        self.answers += 1
        self._show(self.round - 1 + self.answers / (self.expected + 1))

    def round_finished(self, report: RoundReport) -> None:
        accuracy = report.metrics.get("accuracy")
        if accuracy is not None:
            self.last = accuracy
            self.best = max(self.best if self.best is not None else 0.0, accuracy)
            self.validation = report.validation
        self._show(self.round)
        if not self.live and not self.quiet:
            took = duration(time.monotonic() - self.round_began)
            said = f"{self._accuracy()}  " if accuracy is not None else ""
            self.console.print(f"round {self.round}/{self.rounds}  {said}{took}", soft_wrap=True)

    def seconds_left(self, completed: float) -> float | None:
        """From the pace since this process began; None before the first answer."""
        played = completed - self.done_before
        if played <= 0:
            return None
        pace = (self.updated - self.started) / played
        return max(0.0, pace * (self.rounds - completed) - (time.monotonic() - self.updated))

    def _accuracy(self) -> str:
        if self.last is None or self.best is None:
            return ""
        if self.validation is not None:  # a round is chosen by it: the best on test data means little
            return f"accuracy {percent(self.last)}  validation {percent(self.validation)}"
        return f"accuracy {percent(self.last)}  best {percent(self.best)}"

    def _show(self, completed: float) -> None:
        self.updated = time.monotonic()
        if self.bars is None:
            return
        self.bars.update(
            self.bars.task_ids[0],
            completed=completed,
            round=self.round,
            accuracy=self._accuracy(),
            clients=f"{self.answers}/{self.expected}",
        )

    def _new_bars(self) -> Progress:
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
        from rich.text import Text

        follower = self

        class TimeLeft(ProgressColumn):
            def render(self, task: Task) -> Text:
                left = follower.seconds_left(task.completed)
                if task.finished or left is None:
                    return Text("")
                return Text(f"{duration(round(left))} left", style="dim")

        bars = Progress(
            TextColumn("round {task.fields[round]}/{task.total:.0f}"),
            BarColumn(
                bar_width=min(30, max(6, self.console.width - WORDS)),
                complete_style="cyan",
                finished_style="green",
            ),
            TextColumn("[dim]clients[/] {task.fields[clients]}"),
            TextColumn("[green]{task.fields[accuracy]}"),
            TimeLeft(),
            console=self.console,
            refresh_per_second=4,
        )
        bars.add_task(
            "",
            total=self.rounds,
            completed=self.done_before,
            round=self.round,
            clients=f"0/{self.expected}",
            accuracy="",
        )
        return bars
