"""A run's directory: what is where, how it appears whole or not at all, and who may write in it.

::

    config.toml             every setting, with the command that runs it on the first line
    environment.json        versions, threads, dtype, where the data was
    partition.safetensors   who holds what
    start.safetensors       the weights it started from, where they are not the seed's
    metrics.jsonl           one line per round; the same bits whenever and wherever it was computed
    clients.jsonl           one line per round and client that took part (keep.clients)
    timing.jsonl            durations per round and client
    events.jsonl            starts, resumes, clients that failed, warnings
    checkpoints/round-…/    state, config, and a manifest with the SHA-256 of each and of the metrics so far
    checkpoints/metrics.copy.jsonl, checkpoints/clients.copy.jsonl, checkpoints/best.safetensors   the only
                            copies of what a crash of the disk could take and nothing could compute again
    snapshots/round-….safetensors   proxies before and after tuning, client classifiers, confusion matrix
    models/best.safetensors, models/last.safetensors
    clients/, server/       what clients and server keep per client
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, SPOOL, append_bytes, leads_into, read_bounded, sync_folder
from proxyfl.core.locks import held, lock

FORMAT = 2
"""Of checkpoints; no other is read."""

MODELS = ("best", "last")

FINISHED = "finished"
"""The event with which a run ends."""

AT_SITES = "at the sites"
"""What a run says of its data when they lie elsewhere: those of a real federation."""


class RunDirectory:
    """Paths inside one run."""

    def __init__(self, path: Path | str, again: str = "") -> None:
        """``again`` is the command that continues the run."""
        self.path = Path(path)
        self.again = again or f"proxyfl resume {self.path}"
        self.config = self.path / "config.toml"
        self.environment = self.path / "environment.json"
        self.partition = self.path / "partition.safetensors"
        self.start = self.path / "start.safetensors"
        self.metrics = self.path / "metrics.jsonl"
        self.client_log = self.path / "clients.jsonl"
        self.timing = self.path / "timing.jsonl"
        self.events = self.path / "events.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.models = self.path / "models"
        self.clients = self.path / "clients"
        self.server = self.path / "server"
        self.metrics_copy = self.checkpoints / "metrics.copy.jsonl"
        self.client_log_copy = self.checkpoints / "clients.copy.jsonl"
        self.best_copy = self.checkpoints / "best.safetensors"

    @property
    def aside(self) -> Path:
        """Where the directory is built before it is renamed into place."""
        return self.path.with_name(f".{self.path.name}.creating")

    def create(self, build: Callable[[RunDirectory], None]) -> None:
        """Build the directory aside and rename it: it appears complete or not at all."""
        if self.path.exists():
            raise RunError(f"{self.path} exists; continue it with '{self.again}' or choose another --name")
        with readable_errors(self.path, "nothing was created", "run it again"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with held(self.aside.with_suffix(".lock"), f"{self.path} is being created by another process"):
                if self.path.exists():
                    raise RunError(f"{self.path} was just created by another process; choose another --name")
                self._build_aside(build)
                self.aside.rename(self.path)
        with readable_errors(self.path, "what was created is intact", f"continue with '{self.again}'"):
            sync_folder(self.path.parent)

    def _build_aside(self, build: Callable[[RunDirectory], None]) -> None:
        if self.aside.exists():
            shutil.rmtree(self.aside)
        self.aside.mkdir()
        aside = RunDirectory(self.aside)
        for folder in (aside.checkpoints, aside.snapshots, aside.models):
            folder.mkdir()
        try:
            build(aside)
        except ProxyFLError:  # settings that cannot work: nothing worth beginning again
            shutil.rmtree(self.aside, ignore_errors=True)
            raise

    def require(self, otherwise: str = "'proxyfl ls' lists the runs in a folder") -> RunDirectory:
        """Refuse what is no run; ``otherwise`` is what to do then."""
        if not os.path.lexists(self.config) and (
            copies := sorted(self.checkpoints.glob("round-*/config.toml"))
        ):
            raise RunError(f"{self.config} is missing; restore it with 'cp {copies[-1]} {self.config}'")
        if self.is_rest and not os.path.lexists(self.checkpoints):
            raise RunError(f"{self.checkpoints} is missing; restore it from a copy, or delete {self.path}")
        if self.is_rest and not os.path.lexists(self.config):
            raise RunError(f"{self.config} is missing and no checkpoint has a copy; restore it from a copy")
        if not self.is_run:
            raise RunError(f"{self.path} is not a run; {otherwise}")
        self._require_own_files(deep=False)
        return self

    @property
    def is_run(self) -> bool:
        """Whether this is a run, be it damaged."""
        return os.path.lexists(self.config) and os.path.lexists(self.checkpoints)

    @property
    def is_rest(self) -> bool:
        """Whether this is a run or what is left of one: the settings or the checkpoints are gone."""
        return self.is_run or (
            os.path.lexists(self.metrics) and (os.path.lexists(self.config) or self.checkpoints.is_dir())
        )

    def _require_own_files(self, *, deep: bool) -> None:
        """Refuse a run that has links out of itself, which would read or overwrite what is elsewhere.
        Refuse pipes and devices, too, which would be read or waited for without an end.

        ``deep`` looks at what is kept for clients, too, which may be many files. Folders of other programs
        (``--log``) are theirs.
        """
        try:
            home, entries = self.path.resolve(), list(self.path.iterdir())
        except OSError as error:
            raise RunError(f"{self.path} cannot be read: {error.strerror}; make it readable") from error
        for place in (self.checkpoints, self.snapshots, self.models, *((self.clients, self.server) * deep)):
            for folder, folders, files in os.walk(place):
                entries += [Path(folder, name) for name in (*folders, *files)]
        for entry in entries:
            kind = _kind(entry)
            if stat.S_ISLNK(kind):
                if not leads_into(entry, home):
                    raise RunError(f"{entry} is a link that leads out of the run; put the file there instead")
                kind = _kind(entry, follow=True)
            if kind and not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise RunError(f"{entry} is neither a file nor a folder; put the file there instead")
        self._require_kinds()

    def _require_kinds(self) -> None:
        """Refuse a run that has a folder where a file belongs, a file where a folder belongs, or one of them
        that this user may not read.
        """
        logs = (self.metrics, self.client_log, self.timing, self.events)
        files = (self.config, self.environment, self.partition, *logs)
        copies = (
            self.metrics_copy,
            self.client_log_copy,
            self.best_copy,
            *(self.models / f"{which}.safetensors" for which in MODELS),
        )
        folders = (self.checkpoints, self.snapshots, self.models, self.clients, self.server)
        cure = "move it away and put back what was there from a copy"
        for entry in (*files, self.path / ".lock", *copies, *folders):
            kind, belongs = _kind(entry, follow=True), "folder" if entry in folders else "file"
            if kind and stat.S_ISDIR(kind) != (belongs == "folder"):
                found = "a folder" if stat.S_ISDIR(kind) else "a file"
                raise RunError(f"{entry} is {found} where a {belongs} belongs; {cure}")
            if kind and not os.access(entry, os.R_OK | (os.X_OK if belongs == "folder" else 0)):
                raise RunError(f"{entry} cannot be read by this user; make it readable")

    def tidy(self) -> None:
        """Clear away what a process that was killed had not finished: files aside, waiting updates. Folders
        that were lost are made again; what belongs in them is written by whoever goes on.
        """
        for lost in (self.models, self.snapshots):
            lost.mkdir(exist_ok=True)
        for folder in (self.path, self.models, self.snapshots, self.checkpoints):
            for stale in folder.glob(".*.aside"):
                if stale.is_file():
                    stale.unlink(missing_ok=True)
        for spool in self.path.glob(f"{SPOOL}*"):
            shutil.rmtree(spool, ignore_errors=True)

    def event(self, kind: str, **details: Any) -> None:
        """Note something that happened, with the time: on the disk before what follows from it."""
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **details})
        torn = not _ends_a_line(self.events)  # what a process was writing when it was killed
        append_bytes(self.events, ("\n" * torn + line + "\n").encode())

    def noted(self) -> dict[str, Any]:
        """What the run noted about its machine and data; :class:`RunError` where that cannot be read."""
        try:
            found = json.loads(read_bounded(self.environment, JSON_SWELLS, SHORT))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{self.environment} cannot be read ({error}); training continues without it; "
                "restore it from a copy to see it"
            ) from error
        return found if isinstance(found, dict) else {}

    def data_root(self) -> Path | None:
        """The folder in which the run found its data, where it noted one."""
        found = self.hints().get("data_root")
        return Path(found) if isinstance(found, str) and found and "\0" not in found else None

    def hints(self) -> dict[str, Any]:
        """What the run noted, for those who can do without: empty where it cannot be read."""
        try:
            return self.noted()
        except RunError:
            return {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process may write in a run. The lock ends with the process, however it ends."""
        self._require_own_files(deep=True)
        cure = f"continue with '{self.again}'"
        kept = "what was saved before is intact"
        with (
            readable_errors(self.path, kept, cure),
            held(self.path / ".lock", f"{self.path} is being written by another process", remove=False),
        ):
            yield

    def is_locked(self) -> bool:
        """Whether a process is writing in this run; asking does not get in its way for long."""
        try:
            with (self.path / ".lock").open("r") as file:
                return not lock(file.fileno())
        except OSError:
            return False


def _kind(path: Path, *, follow: bool = False) -> int:
    """What the system calls the mode of a file; 0 where there is none, or none any more."""
    try:
        return path.stat(follow_symlinks=follow).st_mode
    except OSError:
        return 0


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON-lines file; an incomplete last one is left out. What is too long to be
    such a file, or is none, has none.
    """
    try:
        return json_lines(read_bounded(path, JSON_SWELLS))
    except (FileNotFoundError, RunError):
        return []


def _ends_a_line(path: Path) -> bool:
    """Whether a file ends with a whole line, or is not there or empty."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                return file.read(1) == b"\n"
    except FileNotFoundError:
        pass
    return True


def json_lines(content: bytes) -> list[dict[str, Any]]:
    """The objects of complete lines."""
    lines = []
    for raw in content.split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(raw)
            if isinstance(value, dict):
                lines.append(value)
    return lines


def measured(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the rounds whose accuracy was measured (``federation.evaluate_every``)."""
    return [line for line in lines if "accuracy" in line]


def accuracy_called(runs: Iterable[Iterable[dict[str, Any]]]) -> str:
    """What the accuracy in the records of some runs is measured on, in words."""
    newest = [lines[-1].get("evaluation") for lines in map(measured, runs) if lines]
    at_sites = [isinstance(each, dict) and each.get("where") == "sites" for each in newest]
    if any(at_sites):
        return "accuracy on data held out at the sites" if all(at_sites) else "accuracy"
    return "test accuracy"


@contextlib.contextmanager
def readable_errors(path: Path, kept: str, cure: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"writing {path} failed: {error.strerror or error}; {kept}. "
            f"Make room or make it writable, then {cure}"
        ) from error
