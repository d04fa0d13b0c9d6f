"""Who hurts, who gains: the clients of a run, most unusual first, and what is unusual about each.

A measure x is compared with what was usual at the time: losses fall over the rounds, and not every client is
in every round. Consecutive rounds are put together until they hold :data:`AT_ONCE` rows, and with m their
median a client's deviation is the median of t(x) - m over its rows (t: the logarithm for lengths, times and
other sizes). The deviations of all clients give a robust score::

    z = (deviation - median) / max(1.4826 MAD, floor)

MAD is the median distance from the median, the floor what is too little to matter. A measure is unusual where
z exceeds :data:`UNUSUAL` on its bad side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.runs.run import Run

UNUSUAL = 3.5
"""Robust scores beyond it are unusual (Iglewicz and Hoaglin, 1993)."""

AT_ONCE = 8
"""Rows of consecutive rounds that are compared with each other, at least."""

FEWEST = 4
"""Clients among which one can be unusual."""

MAD_TO_DEVIATION = 1.4826
SMALLEST = 0.01
"""What logarithms are taken of is at least this much."""

NUMBER = re.compile(r"[0-9]{1,18}")
Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class Measure:
    """What is compared: how it is read from a row, whether low (-1) or high (1) is bad, or either (0), the
    least spread in units of t(x), what is said of a client where it is unusual, and how numbers are written.
    """

    name: str
    value: Value
    bad: int
    floor: float
    low: str = ""
    high: str = ""
    logarithmic: bool = False
    form: Callable[[float], str] = "{:.3g}".format

    def scale(self, value: float) -> float:
        return math.log(max(value, SMALLEST)) if self.logarithmic else value


def _of(name: str) -> Value:
    return lambda row: row.get(name)


def _labels(row: Row) -> float | None:
    return round(row["labelled"] * row["images"]) if {"labelled", "images"} <= row.keys() else None


def _loss(row: Row) -> float | None:
    return sum(row["losses"].values()) if row.get("losses") else None


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


_COUNT, _SECONDS = "{:,.0f}".format, "{:.3g} s".format
MEASURES = (
    Measure(
        "accuracy", _of("accuracy"), -1, 0.02, low="accuracy on its own held-out images is low", form=_share
    ),
    Measure("loss", _loss, 1, 0.1, high="its loss is high", logarithmic=True),
    Measure(
        "cosine",
        _of("cosine"),
        -1,
        0.02,
        low="its update is far from the mean direction",
        form="{:.2f}".format,
    ),
    Measure(
        "norm",
        _of("norm"),
        0,
        0.05,
        low="its update has a small norm",
        high="its update has a large norm",
        logarithmic=True,
    ),
    Measure("trusted", _of("trusted"), -1, 0.02, low="few of its pseudo-labels are confident", form=_share),
    Measure("labels", _labels, -1, 0.2, low="it has few labels", logarithmic=True, form=_COUNT),
    Measure("images", _of("images"), -1, 0.2, low="it has few images", logarithmic=True, form=_COUNT),
    Measure("seconds", _of("seconds"), 1, 0.2, high="it is slow", logarithmic=True, form=_SECONDS),
)


@dataclass(frozen=True)
class Remark:
    """Something unusual: the measure, the client's value, the median of all clients' values, the score, and
    the same in words.
    """

    measure: str
    value: float
    usual: float
    score: float
    words: str


@dataclass
class Client:
    """A client over the run: its median of each measure over the rounds, and what is unusual about it."""

    client: int
    name: str
    rounds: int = 0
    values: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    """How far each measure lies on its bad side."""
    remarks: list[Remark] = field(default_factory=list)
    failed: int = 0
    rejected: int = 0

    @property
    def score(self) -> float:
        """By which clients are ranked: the worst of its scores, an update that failed counting as unusual."""
        return max([UNUSUAL * bool(self.failed), *self.scores.values()], default=0.0)

    @property
    def words(self) -> list[str]:
        """What is unusual, most of all first."""
        found = [remark.words for remark in sorted(self.remarks, key=lambda each: -each.score)]
        if self.rejected:
            found.append(f"left out by the aggregation rule in {self.rejected} of {self.rounds} rounds")
        if self.failed:
            found.append(f"{self.failed} of {self.rounds + self.failed} updates failed or were rejected")
        return found

    def record(self) -> dict[str, Any]:
        """For other programs."""
        return {
            "client": self.client,
            "name": self.name,
            "rounds": self.rounds,
            "failed": self.failed,
            "rejected": self.rejected,
            **self.values,
            "score": self.score,
            "scores": self.scores,
            "unusual": self.words,
        }


def ranked(run: Run) -> list[Client]:
    """The clients that took part in a run, most unusual first; an error where nothing was noted of them."""
    rows, lines = run.client_rows, run.metrics
    if not rows:
        raise RunError(why_none(run))
    return rank(rows, lines, run.client_names)


def rank(rows: Sequence[Row], lines: Iterable[Row] = (), names: Sequence[str] = ()) -> list[Client]:
    """From the rows of ``clients.jsonl`` and the lines of ``metrics.jsonl``, which know who failed."""
    found: dict[int, Client] = {}

    def client(number: int) -> Client:
        name = names[number] if number < len(names) else f"client {number}"
        return found.setdefault(number, Client(number, name))

    for row in rows:
        client(row["client"]).rounds += 1
    for line in lines:
        for number in filter(NUMBER.fullmatch, line.get("failed", ())):
            client(int(number)).failed += 1
        for number in line.get("rejected", ()):
            client(number).rejected += 1
    for measure in MEASURES:
        _compare(measure, rows, found)
    return sorted(found.values(), key=lambda each: (-each.score, each.client))


def _compare(measure: Measure, rows: Sequence[Row], clients: Mapping[int, Client]) -> None:
    """Give every client its median of a measure, its score, and a remark where that is unusual."""
    known = [(row, value) for row in rows if (value := measure.value(row)) is not None]
    single: dict[int, list[float]] = {}
    for row, value in known:
        single.setdefault(row["client"], []).append(value)
    usually = {number: median(own) for number, own in single.items()}
    for number, value in usually.items():
        clients[number].values[measure.name] = value
    if len(usually) < FEWEST:
        return
    usual = median(usually.values())
    least = {number: _floor(measure, number, known, usual) for number in usually}
    for number, score in scores(_deviations(known, measure), least).items():
        bad = score * measure.bad if measure.bad else abs(score)
        clients[number].scores[measure.name] = bad
        if bad > UNUSUAL:
            said = measure.high if score > 0 else measure.low
            words = f"{said} ({measure.form(usually[number])}, the median is {measure.form(usual)})"
            clients[number].remarks.append(Remark(measure.name, usually[number], usual, bad, words))


def scores(deviations: Mapping[int, float], least: Mapping[int, float]) -> dict[int, float]:
    """Robust scores of some values; the spread of each is at least what ``least`` says."""
    middle = median(deviations.values())
    spread = MAD_TO_DEVIATION * median(abs(value - middle) for value in deviations.values())
    return {number: (value - middle) / max(spread, least[number]) for number, value in deviations.items()}


def _deviations(known: Sequence[tuple[Row, float]], measure: Measure) -> dict[int, float]:
    """Each client's median distance from the median of its time."""
    apart: dict[int, list[float]] = {}
    for block in _blocks(known):
        middle = median(measure.scale(value) for _, value in block)
        for row, value in block:
            apart.setdefault(row["client"], []).append(measure.scale(value) - middle)
    return {number: median(own) for number, own in apart.items()}


def _blocks(known: Sequence[tuple[Row, float]]) -> list[list[tuple[Row, float]]]:
    """Whole rounds that are compared with each other; too few rows at the end go with those before."""
    blocks: list[list[tuple[Row, float]]] = []
    for row, value in known:
        ended = blocks and len(blocks[-1]) >= AT_ONCE and blocks[-1][-1][0]["round"] != row["round"]
        if ended or not blocks:
            blocks.append([])
        blocks[-1].append((row, value))
    if len(blocks) > 1 and len(blocks[-1]) < AT_ONCE:
        last = blocks.pop()
        blocks[-1] += last
    return blocks


def _floor(measure: Measure, client: int, known: Sequence[tuple[Row, float]], usual: float) -> float:
    """The least spread of a measure. Accuracy on few images is uncertain by itself."""
    held = max((row.get("held", 0) for row, _ in known if row["client"] == client), default=0)
    if measure.name != "accuracy" or not held:
        return measure.floor
    share = min(max(usual, 1 / (held + 2)), 1 - 1 / (held + 2))
    return max(measure.floor, math.sqrt(share * (1 - share) / held))


def why_none(run: Run) -> str:
    """Why nothing was noted of single clients, and what to do."""
    config = run.config
    if config.privacy.is_on:
        return f"{run.path} has no records of individual clients: differential privacy forbids them"
    if config.keep.clients == "none":
        return f"{run.path} has no records of individual clients: start a run with keep.clients = 'auto'"
    if not config.keep.watches(config.federation.per_round):
        return (
            f"{run.path} has no records of individual clients: its rounds have "
            f"{config.federation.per_round:,} of them; start a run with keep.clients = 'all'"
        )
    if not run.metrics:
        return f"{run.path} has not finished a round yet"
    return (
        f"{run.path} has no records of individual clients: an earlier version ran its "
        f"rounds, or {run.directory.client_log} is lost"
    )
