"""A federation as it is now, from its files alone: run, sites, bytes, disk, certificates.

Read by ``proxyfl deploy status --json``, by OpenMetrics and by the live page. Nothing is asked of Flower, so
a look is quick and disturbs nobody.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ProxyFLError
from proxyfl.core.records import CPU
from proxyfl.deploy import approval, pki
from proxyfl.deploy.enrolment import SITES_FILE, Enrolled, Enrolment
from proxyfl.deploy.live import LIVE_FILE, LiveReader, kind_of_failure, newest
from proxyfl.deploy.names import REMOVED
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.tally import STRANGERS, Count, read_tally
from proxyfl.runs.directory import RunDirectory, measured
from proxyfl.runs.run import Run, seconds_of

OUTCOMES = ("answered", "late", "offline", "refused")
SAID = re.compile(r"(?P<who>\S+) ((?P<joins>takes part)|cannot take part|did not answer yet)\b")
"""How a note about a site begins that tells whether its owner approved what is asked for."""

CONNECTED = 60.0
"""Seconds since its last request within which a site counts as connected: it asks for work far more often."""

Table = dict[str, Any]


@dataclass
class Played:
    """What the rounds so far come to."""

    lines: list[Table] = field(default_factory=list)
    timing: list[Table] = field(default_factory=list)
    rounds: int = 0
    finished: bool = False
    outcomes: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in OUTCOMES})
    """How often each site answered or did not."""
    last: dict[str, int] = field(default_factory=dict)
    """The same of the last round, all sites together."""

    @classmethod
    def of(cls, run: Run, sites: tuple[str, ...]) -> Played:
        found = cls(run.metrics, run.timing, run.config.federation.rounds, run.finished)
        for line in found.lines:
            counts = Counter[str]()
            for client, outcome in _outcomes(line, sites):
                found.outcomes[outcome][client] += 1
                counts[outcome] += 1
            found.last = {name: counts[name] for name in OUTCOMES}
        return found


def _outcomes(line: Table, sites: tuple[str, ...]) -> list[tuple[int, str]]:
    answered = [(client, "answered") for client in line.get("clients", []) if client < len(sites)]
    failed = [(int(k), reason) for k, reason in line.get("failed", {}).items() if int(k) < len(sites)]
    return answered + [(k, kind_of_failure(sites[k], reason)) for k, reason in failed]


class Overview:
    """Looks at a deployment again and again; the records of a run are read where they have changed."""

    def __init__(self, folder: str | Path) -> None:
        self.deployment = Deployment.read(folder)
        self._reader = LiveReader(self.deployment.state / LIVE_FILE)
        self._live: list[Table] = []
        self._played: tuple[object, Played] = (None, Played())

    def look(self) -> Table:
        """All of it as one table that JSON can hold."""
        with contextlib.suppress(ProxyFLError):  # sites may have been added
            form = Deployment.read(self.deployment.path)
            if form.sites != self.deployment.sites:
                self.deployment, self._played = form, (None, Played())
        form = self.deployment
        if new := self._reader.new():
            self._live = newest([*self._live, *new])
        played, tally, enrolled = self._records(), read_tally(form.state), self._enrolled()
        approvals = {} if form.insecure else _approvals(form.sites, enrolled, self._live)
        return {
            "name": form.name,
            "address": form.address,
            "time": round(time.time(), 3),
            "run": self._run(played),
            "sites": [
                {
                    **self._site(client, name, enrolled.get(client), played, tally),
                    "approval": approvals.get(name),
                }
                for client, name in enumerate(form.sites)
            ],
            "strangers_refused": tally.get(STRANGERS, Count()).refused,
            "disk": _disk(form.path),
            "certificates": certificate_days(form),
        }

    def page(self) -> Table:
        """What the live page shows; it changes only where something happens, not with every second."""
        found = self.look()
        for site in found["sites"]:
            site["seen"] = site["seen"] and 10 * round(site["seen"] / 10)
        return {name: found[name] for name in ("name", "address", "run", "sites", "certificates")}

    def _records(self) -> Played:
        run = RunDirectory(self.deployment.run)
        try:
            mark = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in (run.metrics, run.timing))
            if mark != self._played[0]:
                self._played = (mark, Played.of(Run(run.path), self.deployment.sites))
        except (ProxyFLError, OSError, ValueError, KeyError, TypeError):  # not begun, being written, damaged
            if not run.path.exists():
                self._played = (None, Played())
        return self._played[1]

    def _run(self, played: Played) -> Table:
        going = RunDirectory(self.deployment.state).is_locked()
        state = "finished" if played.finished else "running" if going else "stopped"
        lines, scored = played.lines, measured(played.lines)
        last: Table = scored[-1] if scored else {}
        timing = [
            {name: value for name, value in line.items() if isinstance(value, int | float)}
            for line in played.timing
        ]
        phases = dict.fromkeys(name for line in timing for name in line if name not in ("round", CPU))
        words = [str(line["text"]) for line in self._live if "text" in line]
        return {
            "state": state if lines or going else "not begun",
            "round": len(lines),
            "rounds": played.rounds or self.deployment.config.federation.rounds,
            "begun": max((line["round"] for line in self._live if line["event"] == "round"), default=0)
            if going
            else 0,
            "accuracy": last.get("accuracy"),
            "measures": last.get("measures", {}),
            "bytes_up": sum(line["traffic"]["bytes_up"] for line in lines),
            "bytes_down": sum(line["traffic"]["bytes_down"] for line in lines),
            "last_round": {
                "sites": played.last,
                "seconds": {name: timing[-1].get(name, 0.0) for name in phases} if timing else {},
            },
            "seconds": round(sum(seconds_of(line)[0] for line in played.timing), 3),
            "said": words[-1] if words else "",
        }

    def _site(
        self, client: int, name: str, row: Enrolled | None, played: Played, tally: Mapping[str, Count]
    ) -> Table:
        form, count = self.deployment, tally.get(name)
        mine = [line for line in self._live if line.get("client") == client]
        answers = [line for line in mine if line["event"] == "answered"]
        seen = max([count.seen if count else 0.0, *(line["time"] for line in answers[-1:])])
        scored = measured(played.lines)
        at: Table = scored[-1].get("evaluation", {}).get("at", {}) if scored else {}
        found: Table = {
            "name": name,
            "state": self._state(client, name, seen),
            "seen": seen or None,
            "images": None if row is None else {"labelled": row.labelled, "unlabelled": row.unlabelled,
                                                "held_out": row.heldout},
            "rounds": {outcome: played.outcomes[outcome][client] for outcome in OUTCOMES},
            "accuracy": at.get(name, {}).get("accuracy"),
            "last_answer": {key: answers[-1].get(key) for key in ("round", "bytes", "seconds", "time")}
            if answers
            else None,
            "doing": _doing(client, mine, self._live),
        }  # fmt: skip
        if count is not None and not form.is_removed(name):
            found["gate"] = {"received": count.received, "sent": count.sent, "refused": count.refused}
        return found

    def _state(self, client: int, name: str, seen: float) -> str:
        if self.deployment.is_removed(name):
            return REMOVED
        if not seen:
            return "not seen"
        return "connected" if time.time() - seen < CONNECTED else "offline"

    def _enrolled(self) -> dict[int, Enrolled]:
        with contextlib.suppress(ProxyFLError):
            if (self.deployment.run / SITES_FILE).is_file():
                return Enrolment.load(self.deployment.run, self.deployment.sites).counts
        return {}


def _approvals(sites: Sequence[str], enrolled: Mapping[int, Enrolled], live: list[Table]) -> dict[str, str]:
    """Whether the owners of sites approved what the run asks for, ``given`` or ``missing``, where known."""
    known, found = set(sites), {sites[client]: "given" for client in enrolled}
    for line in live:
        text, client = str(line.get("text", "")), line.get("client")
        name = sites[client] if isinstance(client, int) and 0 <= client < len(sites) else ""
        said = SAID.match(text)
        name = name or (said["who"] if said else "")
        if name in known and (line["event"] == "answered" or (said and said["joins"])):
            found[name] = "given"
        elif name in known and approval.is_missing(text):
            found[name] = "missing"
    return found


def _doing(client: int, mine: list[Table], live: list[Table]) -> str:
    """What a site does in the round that is being played, in words."""
    begun = [line for line in live if line["event"] in ("round", "finished round", "finished", "stopped")]
    if not begun or begun[-1]["event"] != "round" or client not in begun[-1].get("clients", []):
        return ""
    number = begun[-1]["round"]
    answered = [line["event"] for line in mine if line.get("round") == number]
    if not answered:
        return f"training round {number}"
    return f"answered round {number}" if answered[-1] == "answered" else f"left out of round {number}"


def _disk(place: Path) -> Table:
    found = shutil.disk_usage(place)
    return {"free": found.free, "size": found.total}


def certificate_days(deployment: Deployment) -> dict[str, int]:
    """Days that are left of each certificate, below nought where it has ended."""
    if deployment.insecure:
        return {}
    files = {"server": deployment.server_certificate, "authority": deployment.ca_certificate}
    files |= {name: deployment.site(name).certificate for name in deployment.present}
    found = {}
    for name, file in files.items():
        with contextlib.suppress(ProxyFLError, OSError):
            is_authority = file == deployment.ca_certificate
            found[name] = pki.former_days(file) if is_authority else pki.days_left(file)
    return found
