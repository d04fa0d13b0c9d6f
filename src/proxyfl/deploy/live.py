"""What happens in a running federation, line by line, for whoever follows it: ``DIR/state/live.jsonl``.

The server app writes it, and the server's command where it starts a run again; ``proxyfl deploy server``,
``run``, ``attach`` and ``status`` read it. It goes on from run to run and is begun anew at a size. The run's
own files are complete without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxyfl.core.records import CPU
from proxyfl.core.state import Failure, Update, size_in_bytes
from proxyfl.engines.flower.grid import GONE
from proxyfl.engines.flower.grid import LATE as LATE_ANSWERS
from proxyfl.federation.loop import RoundReport

LIVE_FILE, OLD = "live.jsonl", ".old.jsonl"
LIVE_BYTES = 5_000_000
"""The file is begun anew at this size; the one before it is kept under another name."""

ENDS = ("finished", "stopped")
"""The last event of a run."""

AGAIN = "again"
"""The event by which the server's command says that it starts something again, and then the run goes on."""

MISSED = (*LATE_ANSWERS, "did not send its update")
LATE = (*MISSED, "was not asked: the round's deadline")
OFFLINE = ("is not connected", GONE)
"""How reasons begin that are no refusals, behind the site's name."""


class LiveLog:
    """An observer that appends a line per event, and says in words what an operator should read.

    ``run`` is Flower's number of the run. What cannot be written is let go: a full disk ends a run where its
    own files are written. With ``aloud`` words go to Flower's log, too. ``left_out`` says why the answers of
    clients were not used, to be reported to them.
    """

    def __init__(self, file: Path, sites: tuple[str, ...], run: str = "", *, aloud: bool = False) -> None:
        self.file, self.sites, self.run, self.aloud = file, sites, run, aloud
        self.torn, self.left_out, self.round = True, dict[int, str](), 0
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)

    def tell(self, event: str, **details: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, "run": self.run, **details})
        try:
            if self.file.is_file() and self.file.stat().st_size > LIVE_BYTES:
                self.file.replace(self.file.with_suffix(OLD))
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n" * (self.torn and file.tell() > 0) + line + "\n")
            self.torn = False
        except OSError:
            self.torn = True
        if self.aloud and "text" in details:
            print(f"proxyfl: {details['text']}", flush=True)

    def round_started(self, round: int, clients: list[int]) -> None:
        self.round = round
        self.tell("round", round=round, clients=clients)

    def answered(self, answer: Update | Failure) -> None:
        name = self.sites[answer.client]
        if isinstance(answer, Failure):
            reason = answer.reason.removeprefix(name).lstrip(": ")
            kind = _kind(reason)
            later = "; it counts in the next round if it comes" if answer.pending else ""
            text = f"round {answer.round}: {name} {reason}; the round continues without it{later}"
            if kind == "refused":
                text = f"round {answer.round}: {name} left out: {reason}"
                self.left_out[answer.client] = f"round {answer.round}: {reason}"
            elif reason.startswith(MISSED) and not answer.pending:
                self.left_out[answer.client] = f"round {answer.round}: it had not arrived by the deadline"
            self.tell("failed", round=answer.round, client=answer.client, site=name, text=text)
        else:
            sent = sum(map(size_in_bytes, (answer.weights, *answer.again, answer.extras)))
            details: dict[str, Any] = {"bytes": sent, "seconds": round(answer.seconds, 3)}
            now = max(self.round, answer.round)
            if answer.round < now:
                details["text"] = f"round {now}: the update of {name} of round {answer.round} arrived"
            self.tell("answered", round=now, client=answer.client, site=name, **details)

    def round_finished(self, report: RoundReport) -> None:
        metrics = report.metrics
        text = round_line(metrics, report.timing, self.sites)
        found = {name: metrics[name] for name in ("round", "accuracy") if name in metrics}
        self.tell("finished round", **found, text=text)


def round_line(metrics: Mapping[str, Any], timing: Mapping[str, float], sites: tuple[str, ...]) -> str:
    """A round in a line: accuracy where it was measured, who answered and who did not, how long it took."""
    named: dict[str, list[str]] = {"late": [], "offline": [], "refused": []}
    for client, reason in metrics["failed"].items():
        name = sites[int(client)]
        named[kind_of_failure(name, reason)].append(name)
    answered = ", ".join(sites[client] for client in metrics["clients"]) or "nobody"
    measured = "accuracy" in metrics
    parts = [
        (f"accuracy {metrics['accuracy']:.1%}{_on(metrics)}, " if measured else "") + f"answered: {answered}"
    ]
    parts += [f"{kind}: {', '.join(names)}" for kind, names in named.items() if names]
    spent = f"{sum(seconds for name, seconds in timing.items() if name != CPU):.1f} s"
    if measured:
        spent += f", {timing['evaluate']:.1f} s of it measuring accuracy"
    return f"round {metrics['round']}: {'; '.join([*parts, spent])}"


def kind_of_failure(name: str, reason: str) -> str:
    """What became of a site: ``late``, ``offline`` or ``refused``."""
    return _kind(str(reason).removeprefix(name).lstrip(": "))


def _kind(reason: str) -> str:
    """What became of a site that has no part in a round."""
    return "late" if reason.startswith(LATE) else "offline" if reason.startswith(OFFLINE) else "refused"


def _on(metrics: Mapping[str, Any]) -> str:
    """On what accuracy was measured, where not every site that holds out images took part in it."""
    source = metrics.get("evaluation", {})
    if not source.get("missing"):
        return ""
    return f" (on {source['images']:,} images of {', '.join(source['sites'])} alone)"


class LiveReader:
    """The lines that were added since the last look; goes on with the next file where one was begun anew.

    What is no line of the kind is passed over: a process may have been killed while it wrote.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.offset, self.number = file, 0, 0

    def new(self) -> list[dict[str, Any]]:
        raw = b""
        with contextlib.suppress(OSError):
            raw = self._rest(self.file.with_suffix(OLD), only=self.number)
        with contextlib.suppress(OSError):
            raw += self._rest(self.file)
        return [line for part in raw.splitlines() if (line := _event(part))]

    def _rest(self, place: Path, only: int | None = None) -> bytes:
        """Whole lines behind those that were read; with ``only``, of the file that has this number."""
        with place.open("rb") as file:
            number = os.fstat(file.fileno()).st_ino
            if only not in (None, number):
                return b""
            if number != self.number or file.seek(0, os.SEEK_END) < self.offset:
                self.number, self.offset = number, 0
            file.seek(self.offset)
            whole, mark, _ = file.read().rpartition(b"\n")
        self.offset += len(whole) + len(mark)
        return whole + mark


def newest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the run that wrote last."""
    return [line for line in lines if line.get("run") == lines[-1].get("run")]


def _event(raw: bytes) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(raw)
        return line if isinstance(line, dict) and isinstance(line.get("event"), str) else None
    return None
