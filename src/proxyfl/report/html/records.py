"""What a run's records say, as plain numbers for a page: curves, totals, failures.

Records may come from a damaged or a foreign run: whatever is no finite number is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxyfl.core.config import PrivacySettings
from proxyfl.core.records import CPU
from proxyfl.core.trees import table_in
from proxyfl.federation.traffic import PARTS, WAYS
from proxyfl.runs.run import Run

Line = dict[str, Any]
Numbers = list[float | int | None]

MOST_POINTS, MOST_COLUMNS = 400, 60
"""Rounds drawn of a curve and of a map; of longer runs these are spread evenly, the last one among them."""

MOST_FAILURES, LONGEST_REASON = 200, 300
LARGEST = 1e300
"""Numbers beyond it are no measurement; NaN is not below it either."""

KEPT = (
    "round", "accuracy", "per_class", "precision", "measures", "validation", "failed", "losses", "pseudo",
    "prior", "traffic", "server", "evaluation", "privacy", "record_privacy",
)  # fmt: skip
PRIVATE = (("privacy", "clip", "noise"), ("record_privacy", "record_clip", "record_noise"))
"""What rounds cost, of whole clients and of single records, and the settings it depends on."""

PHASES = ("train", "serve", "evaluate", "record")
TIME_LEFT_FROM = 10
"""The newest rounds from whose duration the time left is reckoned."""


@dataclass
class Records:
    """The lines of metrics.jsonl, timing.jsonl and events.jsonl."""

    metrics: list[Line] = field(default_factory=list)
    timing: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run) -> Records:
        return cls(usable(run.lines), usable(run.timing), run.events)

    def seconds_left(self, total: int) -> float | None:
        """How long the remaining rounds take if they are like the newest ones."""
        newest = [sum(_durations(line).values()) for line in self.timing[-TIME_LEFT_FROM:]]
        return None if not newest else (total - len(self.metrics)) * sum(newest) / len(newest)


def usable(lines: Sequence[Line]) -> list[Line]:
    """The lines that belong to a round, with what a page shows of them."""
    return [slim(line) for line in lines if type(line.get("round")) is int]


def slim(line: Line) -> Line:
    """A record of a round without what only a program wants, such as each client's class counts."""
    if not {"accuracy", "traffic"} & line.keys():
        return line
    kept = {name: line[name] for name in KEPT if name in line}
    if isinstance(kept.get("traffic"), Mapping):
        kept["traffic"] = {name: value for name, value in kept["traffic"].items() if name != "numbers"}
    return kept


def number(value: Any, digits: int = 5) -> float | int | None:
    """A finite number with so many digits, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def numbers(values: Any, digits: int = 4) -> Numbers:
    return [number(value, digits) for value in values] if isinstance(values, list | tuple) else []


def spread(count: int, most: int) -> list[int]:
    """At most so many positions of ``count``, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(k * (count - 1) / (most - 1)) for k in range(most)})


def curves(records: Records) -> dict[str, Numbers]:
    """Columns, one value per drawn round: ``accuracy``, ``measures.…``, ``losses.…``, ``seconds.…``."""
    seconds = {line["round"]: _durations(line) for line in records.timing}
    rows = []
    measured = [place for place, line in enumerate(records.metrics) if "accuracy" in line]
    drawn = {measured[place] for place in spread(len(measured), MOST_POINTS)}
    for position in sorted(drawn.union(spread(len(records.metrics), MOST_POINTS))):
        line = records.metrics[position]
        row = {"round": line["round"], "accuracy": number(line.get("accuracy"))}
        for group in ("measures", "validation", "losses", "pseudo"):
            row |= {f"{group}.{name}": number(value) for name, value in table_in(line, group).items()}
        if "loss" in (own := table_in(line, "server")):
            row["losses.server"] = number(own["loss"])
        row |= {f"seconds.{name}": number(value, 4) for name, value in seconds.get(line["round"], {}).items()}
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def over_rounds(records: Records, name: str) -> dict[str, Any] | None:
    """A vector per round, such as ``per_class`` or ``prior``: the last one, and a map of them over rounds."""
    lines = [line for line in records.metrics if isinstance(line.get(name), list) and line[name]]
    if not lines:
        return None
    drawn = [lines[position] for position in spread(len(lines), MOST_COLUMNS)]
    return {
        "last": numbers(lines[-1][name]),
        "round": lines[-1]["round"],
        "rounds": [line["round"] for line in drawn],
        "values": [numbers(line[name], 3) for line in drawn],
    }


def summary(records: Records, last_rounds: int) -> dict[str, Any]:
    """Accuracy, time and traffic in a line; empty before the first round."""
    found = [(line["round"], number(line.get("accuracy"), 12)) for line in records.metrics]
    scored = [(round, value) for round, value in found if value is not None]
    if not scored:
        return {}
    tail = [value for _, value in scored[-last_rounds:]]
    held = {
        line["round"]: number(table_in(line, "validation").get("accuracy"), 12) for line in records.metrics
    }
    known = {round: value for round, value in held.items() if value is not None}
    best_round, best = max(scored, key=lambda each: (known.get(each[0], each[1]), -each[0]))
    sent = traffic(records)
    return {
        "mean_last": number(sum(tail) / len(tail), 6),
        "tail": len(tail),
        "last": number(scored[-1][1], 6),
        "best": number(best, 6),
        "best_round": best_round,
        "chosen_on": "validation" if known else "test",
        "seconds": number(sum(phases(records).values())),
        "bytes": sum(sum(sent[way].values()) for way in ("up", "down")) if sent else None,
    }


def traffic(records: Records) -> dict[str, dict[str, int]] | None:
    """Bytes sent over all rounds: by way (up, down, and down counted as one broadcast) and part."""
    totals = {way: dict.fromkeys(PARTS, 0) for way in WAYS}
    for line in records.metrics:
        for way, parts in totals.items():
            sizes = table_in(table_in(line, "traffic"), way)
            for part in parts:
                parts[part] += int(number(sizes.get(part)) or 0)
    return totals if any(any(parts.values()) for parts in totals.values()) else None


def phases(records: Records) -> dict[str, float]:
    """Seconds by phase over all rounds."""
    totals: dict[str, float] = {}
    for line in records.timing:
        for name, value in _durations(line).items():
            totals[name] = totals.get(name, 0.0) + value
    order = {name: place for place, name in enumerate(PHASES)}
    return {name: totals[name] for name in sorted(totals, key=lambda name: order.get(name, len(order)))}


def privacy(records: Records, settings: PrivacySettings) -> list[dict[str, Any]]:
    """What the rounds so far have cost, of whole clients and of single records, where either is private."""
    line = records.metrics[-1] if records.metrics else {}
    return [
        {
            "of": group,
            **{name: number(table_in(line, group).get(name)) for name in ("epsilon", "delta")},
            "clip": getattr(settings, clip),
            "noise": getattr(settings, noise),
            "rounds": line["round"],
        }
        for group, clip, noise in PRIVATE
        if table_in(line, group)
    ]


def failures(records: Records) -> tuple[list[list[Any]], int]:
    """(round, client, reason) of the newest clients that failed, and how many failed in all."""
    found: dict[tuple[int, str], str] = {}
    for event in records.events:  # a round that never counted is in the events alone
        if event.get("event") == "client failed" and type(event.get("round")) is int:
            found[event["round"], str(event.get("client"))] = _reason(event.get("reason"))
    for line in records.metrics:
        for client, reason in table_in(line, "failed").items():
            found[line["round"], str(client)] = _reason(reason)
    rows = [[round, client, reason] for (round, client), reason in sorted(found.items())]
    return rows[-MOST_FAILURES:], len(rows)


def _reason(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_REASON else f"{text[: LONGEST_REASON - 1]}…"


def _durations(line: Line) -> dict[str, float]:
    left_out = ("round", CPU)
    return {name: value for name, value in line.items() if name not in left_out and number(value) is not None}
