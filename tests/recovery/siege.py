"""A run that is killed and starved of its disk again and again, until it has ended well often enough.

Where it breaks off is drawn from a seed: at an operation of the disk, or after a time. After every break what
is left is looked at; whenever the run gets to its end, every file that matters must have the bits of a run
that nothing happened to.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from faulty_disk import WHEN, Fault

from proxyfl.core.files import sha256
from proxyfl.runs import checkpoint, manifests
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run

STAGE = Path(__file__).with_name("crash_stage.py")
METHODS = {
    "proxyfl": "clients",
    "flexmatch": "clients",
    "fedloke": "clients",
    "semifl": "server",
    "flfl": "server",
    "cbafed": "partial",
    "rscfed": "partial",
}
"""Methods that keep something of every kind, and who holds the labels."""

ROUNDS = 5
SETTINGS = {
    "federation.rounds": ROUNDS,
    "federation.per_round": 2,
    "partition.clients": 4,
    "data.subset": 80,
    "compute.dtype": "fp32",
    "train.epochs": 1,
    "train.batch": 8,
    "keep.snapshot_every": 4,
    "model.width": 1,
}
OWN = {"proxyfl": {"method.gpt.epochs": 10, "method.tau": 0.3}}
LIMITS = (4_000, 12_000, 60_000, 200_000, 330_000)
"""Sizes at which the system stops a file: in the metrics, in small files, in states and models."""

KILLED = -signal.SIGKILL
USER_ERROR = 2


class Stage:
    """The process in which runs are started; see ``crash_stage.py``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(STAGE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def perform(
        self,
        argv: list[str],
        fault: Fault,
        seconds: float | None = None,
        victim: str = "run",
        above: int | None = None,
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        request = {"argv": argv, "fault": asdict(fault), "seconds": seconds, "victim": victim, "above": above}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@dataclass(frozen=True)
class Engine:
    """Where clients are trained: in the run's own process, in its workers, or on a Ray cluster."""

    workers: int = 0
    address: str = ""
    above: int | None = None
    """The process below which a cluster's actors are."""

    @property
    def words(self) -> list[str]:
        cluster = ["--engine", "ray", "--address", self.address] if self.address else []
        return ["--workers", str(self.workers), *cluster]


@dataclass
class Siege:
    """One method on one engine. ``tell`` hears of every kill."""

    stage: Stage
    folder: Path
    method: str
    engine: Engine
    seed: object
    tell: Callable[[], None] = lambda: None
    happened: Counter[str] = field(default_factory=Counter)
    rounds_at_kill: list[int] = field(default_factory=list)
    finished: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.method} {self.engine.workers} {self.seed}")
        self._where = self.folder / "run-0"

    def undisturbed(self) -> dict[str, str]:
        """The bits of a run that nothing happens to; how long it takes and what it writes is remembered."""
        self._where = self.folder / "undisturbed"
        answer = self.stage.perform(self._words(), Fault())
        assert answer["code"] == 0, answer["said"]
        self._operations, self._seconds = answer["operations"], answer["seconds"]
        found = bits(self._where)
        self._where = self.folder / "run-0"
        return found

    def endure(self, kills: int, expected: dict[str, str]) -> None:
        """Until that many processes were killed; what is left of the last run is then played to its end."""
        while self.happened["killed"] < kills:
            fault, seconds, victim = self._plan()
            self._attempt(fault, seconds, victim, expected)
        self._attempt(Fault(), None, "run", expected)

    def _plan(self) -> tuple[Fault, float | None, str]:
        draw = self._draw
        # Ray writes files of its own, in words of its own where that fails.
        disk = (0, 0, 0, 0) if self.engine.address else (6, 4, 4, 6)
        kind = draw.choices(
            ("operation", "power", "time", "slow", "full", "read-only", "broken", "limit", "worker"),
            (30, 10, 16, 6, *disk, 6 if self.engine.workers else 0),
        )[0]
        at = draw.randint(1, self._operations)
        if kind in ("operation", "power"):
            return Fault("kill" if kind == "operation" else kind, at, draw.choice(WHEN)), None, "run"
        if kind in ("time", "slow", "worker"):
            seconds = draw.uniform(0, self._seconds)
            return (
                Fault("slow" if kind == "slow" else "none"),
                seconds,
                "worker" if kind == "worker" else "run",
            )
        return Fault(kind, draw.choice(LIMITS) if kind == "limit" else at), None, "run"

    def _attempt(self, fault: Fault, seconds: float | None, victim: str, expected: dict[str, str]) -> None:
        answer = self.stage.perform(self._words(), fault, seconds, victim, self.engine.above)
        story = f"{self.method}, {self.engine}, {fault}, {seconds} s, {victim}: {answer}"
        assert answer["code"] in (0, USER_ERROR, KILLED), story
        if answer["code"] == KILLED:
            self.happened["killed"] += 1
            self.rounds_at_kill.append(len(Run(self._where).metrics) if self._where.exists() else -1)
            self.tell()
        elif answer["code"] == USER_ERROR:
            self.happened[fault.kind] += 1
            lines = [line for line in answer["said"].splitlines() if not line.startswith("note: ")]
            assert len(lines) == 1, story
            assert lines[0].startswith(f"error: writing {self._where} failed: "), story
        if victim == "worker" and answer["shot"]:
            self.happened["worker"] += 1
        look_at(self._where, story)
        if answer["code"] == 0:
            found = bits(self._where)
            wrong = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
            assert not wrong, f"{wrong} after {story}"
            shutil.rmtree(self._where)
            self.finished += 1
            self._where = self.folder / f"run-{self.finished}"

    def _words(self) -> list[str]:
        aside = RunDirectory(RunDirectory(self._where).aside)
        last = ["--quiet", *self.engine.words]
        if self._where.exists() or aside.config.is_file():
            return ["resume", str(self._where), *last]
        chosen = SETTINGS | OWN.get(self.method, {})
        settings = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
        place = ["--runs", str(self.folder), "--name", self._where.name]
        what = ["--method", self.method, "--scenario", METHODS[self.method]]
        return ["run", "digits", *what, *settings, *place, *last]


def look_at(where: Path, story: str) -> None:
    """Whatever happened, what can be read is whole: every checkpoint is intact, no round lacks or doubles."""
    run = RunDirectory(where)
    if not where.exists():
        return
    saved, warnings = checkpoint.load_newest(run, states=True)
    assert warnings == [], story
    rounds = [line["round"] for line in Run(where).metrics]
    assert rounds == list(range(1, len(rounds) + 1)), story
    assert saved.state.round <= len(rounds) <= saved.state.round + 1, story


def bits(where: Path) -> dict[str, str]:
    """The hashes of everything in a finished run that must not depend on what happened to it."""
    assert [line["round"] for line in Run(where).metrics] == list(range(1, ROUNDS + 1))
    timing = [line["round"] for line in Run(where).timing]
    assert timing == sorted(set(timing))
    assert not list(where.rglob("*.aside"))
    assert not list(where.glob("spool-*"))
    apart = {"timing.jsonl", "events.jsonl", ".lock"}
    newest = manifests.folders(RunDirectory(where))[:2]  # another may have been on its way out
    files = [file for file in where.rglob("*") if file.is_file() and file.name not in apart]
    files = [file for file in files if not file.parent.name.startswith("round-") or file.parent in newest]
    return {str(file.relative_to(where)): sha256(file) for file in files}
