"""Runs as a table: in the terminal and as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from proxyfl.core.errors import RunError
from proxyfl.runs.run import Run


@dataclass(frozen=True)
class Spread:
    """A mean with the sample standard deviation; one value has none."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    def percent(self) -> str:
        text = f"{100 * self.mean:.2f}"
        return text if self.std is None else f"{text} ± {100 * self.std:.2f}"


@dataclass(frozen=True)
class Row:
    """A method's runs: accuracies from 0 to 1, time and traffic of a run on average.

    ``tail`` counts the last rounds that ``mean_last`` is over; where runs differ it is the smallest.
    """

    method: str
    runs: int
    mean_last: Spread
    last: Spread
    best: Spread
    rounds: tuple[int, int]
    tail: int
    seconds: float
    megabytes: float


def summary_rows(runs: Mapping[str, Sequence[Run]]) -> list[Row]:
    """One row per method, in the order given."""
    return [_row(method, each) for method, each in runs.items()]


def _row(method: str, runs: Sequence[Run]) -> Row:
    if not runs:
        raise RunError(f"there is no run of {method}")
    found = [run.summary for run in runs]
    return Row(
        method=method,
        runs=len(runs),
        mean_last=Spread.of([summary.mean_last for summary in found]),
        last=Spread.of([summary.last for summary in found]),
        best=Spread.of([summary.best for summary in found]),
        rounds=(min(summary.rounds for summary in found), max(summary.rounds for summary in found)),
        tail=min(min(run.config.keep.last_rounds, s.measured) for run, s in zip(runs, found, strict=True)),
        seconds=statistics.fmean(summary.seconds for summary in found),
        megabytes=statistics.fmean(summary.megabytes for summary in found),
    )


def _tail(rows: Sequence[Row]) -> str:
    tails = {row.tail for row in rows}
    return f"last {tails.pop()}" if len(tails) == 1 else "last"


def cells(row: Row) -> list[str]:
    """A row as it is printed."""
    low, high = row.rounds
    return [
        row.method, row.mean_last.percent(), row.last.percent(), row.best.percent(),
        str(low) if low == high else f"{low}–{high}", duration(row.seconds), f"{row.megabytes:.1f}",
    ]  # fmt: skip


def to_rich(rows: Sequence[Row]) -> Table:
    """The table for a terminal. It fits 80 columns; in narrower ones the headings are wrapped first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings = ("method", f"mean {_tail(rows)}", "last", "best", "rounds", "time", "MB")
    body = [cells(row) for row in rows]
    for position, heading in enumerate(headings):
        widest = max((len(line[position]) for line in body), default=0)
        table.add_column(heading, justify="right" if position else "left", min_width=widest)
    for line in body:
        table.add_row(*line)
    return table


def to_markdown(rows: Sequence[Row]) -> str:
    """The table for a README."""
    headings = [
        "method", f"accuracy, mean of {_tail(rows)} rounds (%)", "last round (%)", "best round (%)",
        "rounds", "time", "sent (MB)",
    ]  # fmt: skip
    lines = [headings, ["---", *["---:"] * 6], *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def caption(rows: Sequence[Row]) -> str:
    """What the numbers of a table are."""
    counts = {row.runs for row in rows}
    if counts == {1}:
        return "Test accuracy in %, one seed; MB: megabytes sent up and down."
    return (
        f"Test accuracy in %, mean ± standard deviation over {span(counts)} seeds; time and MB sent per run."
    )


def span(counts: Iterable[int]) -> str:
    """``3``, or ``1 to 3`` where they differ."""
    known = {*counts}
    return "" if not known else f"{min(known)}" if len(known) == 1 else f"{min(known)} to {max(known)}"


def duration(seconds: float) -> str:
    """A time in its fitting unit: ``48 s``, ``2:05 min``, ``3:12 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"
