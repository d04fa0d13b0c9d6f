"""What happens in a running federation, line by line, for whoever follows it: ``DIR/state/live.jsonl``.

The server app writes it, ``proxyfl deploy run`` and ``status`` read it. The run's own files are complete
without it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from proxyfl.core.state import Failure, Update
from proxyfl.federation.loop import RoundReport

LIVE_FILE = "live.jsonl"


class LiveLog:
    """An observer that appends a line per event, and says in words what an operator should read."""

    def __init__(self, file: Path, sites: tuple[str, ...]) -> None:
        self.file, self.sites = file, sites
        file.parent.mkdir(parents=True, exist_ok=True)

    def tell(self, event: str, **details: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, **details})
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        if "text" in details:
            print(f"proxyfl: {details['text']}", flush=True)

    def round_started(self, round: int, clients: list[int]) -> None:
        self.tell("round", round=round, clients=clients)

    def answered(self, answer: Update | Failure) -> None:
        name = self.sites[answer.client]
        if isinstance(answer, Failure):
            reason = answer.reason.removeprefix(name).lstrip(": ")
            text = f"round {answer.round}: {name} left out: {reason}"
            self.tell("failed", round=answer.round, client=answer.client, site=name, text=text)
        else:
            self.tell("answered", round=answer.round, client=answer.client, site=name)

    def round_finished(self, report: RoundReport) -> None:
        metrics = report.metrics
        names = ", ".join(self.sites[client] for client in metrics["clients"])
        text = f"round {metrics['round']}: accuracy {metrics['accuracy']:.1%}, answered: {names or 'nobody'}"
        self.tell("finished round", round=metrics["round"], accuracy=metrics["accuracy"], text=text)


class LiveReader:
    """The lines that were added since the last look; begins again where the file is a new one."""

    def __init__(self, file: Path) -> None:
        self.file, self.offset = file, 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with self.file.open("rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                raw = file.read()
        except FileNotFoundError:
            self.offset = 0
            return []
        whole = raw.rpartition(b"\n")[0]
        self.offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]
