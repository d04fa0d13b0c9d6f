"""Runs as the live page sees them: found by name inside one folder, read bit by bit as they grow."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.core.files import JSON_SWELLS, leads_into, opened
from proxyfl.core.machine import usable_memory
from proxyfl.core.text import reported
from proxyfl.report.html.gather import page_data, run_data, status
from proxyfl.report.html.pieces import UNREADABLE, pieces
from proxyfl.report.html.records import Line, Records, usable
from proxyfl.runs.directory import RunDirectory, json_lines
from proxyfl.runs.run import Run

MOST_RUNS = 2000
"""Runs that are listed, by name; and that are kept in memory between two questions."""

DEPTH = 2
"""Runs are looked for in the folder and in the folders in it."""

LONGEST_PART = 16 << 20
"""Bytes read of a growing file at a time."""

ANCHOR = 64
"""Bytes before the place reached that must still be the same, else the file is read anew."""


class GrowingLines:
    """A JSON-lines file that is read once: each look reads what was added. A resumed run may cut it short."""

    def __init__(self, path: Path, *, rounds: bool = True) -> None:
        self.path, self.rounds = path, rounds
        self.lines: list[Line] = []
        self._offset, self._anchor = 0, b""

    def refresh(self) -> None:
        try:
            with opened(self.path) as file:
                if os.fstat(file.fileno()).st_size * JSON_SWELLS > usable_memory() // 2:
                    raise RunError(f"{self.path} is damaged: it is longer than memory can hold")
                if not self._same(file.fileno()):
                    self.lines, self._offset, self._anchor = [], 0, b""
                file.seek(self._offset)
                while self._take(file.read(LONGEST_PART)):
                    file.seek(self._offset)
        except FileNotFoundError:
            self.lines, self._offset, self._anchor = [], 0, b""

    def _same(self, handle: int) -> bool:
        if not self._anchor:
            return True
        start = self._offset - len(self._anchor)
        os.lseek(handle, start, os.SEEK_SET)
        return os.read(handle, len(self._anchor)) == self._anchor

    def _take(self, added: bytes) -> bool:
        """Take the complete lines; whether there may be more."""
        end = added.rfind(b"\n") + 1
        if not end:
            return False
        found = json_lines(added[:end])
        self.lines += usable(found) if self.rounds else found
        self._offset += end
        self._anchor = added[max(0, end - ANCHOR) : end]
        return len(added) == LONGEST_PART


class WatchedRun:
    """One run: its records so far, and its other parts as of the newest snapshot."""

    def __init__(self, path: Path, name: str) -> None:
        self.run, self.name = Run(path), name
        folder = self.run.directory
        self._metrics, self._timing = GrowingLines(folder.metrics), GrowingLines(folder.timing)
        self._events = GrowingLines(folder.events, rounds=False)
        self._lock = threading.Lock()
        self._parts: tuple[object, dict[str, Any]] | None = None

    def records(self) -> Records:
        with self._lock:
            for file in (self._metrics, self._timing, self._events):
                file.refresh()
            return Records(list(self._metrics.lines), list(self._timing.lines), list(self._events.lines))

    def status(self) -> dict[str, Any]:
        return status(self.run, self.records()) | {"name": self.name}

    def data(self) -> dict[str, Any]:
        return run_data(self.run, self.records(), self._all_parts()) | {"name": self.name}

    def _all_parts(self) -> dict[str, Any]:
        """Computed anew only when there is a new snapshot or the first model. No data set is opened."""
        folder = self.run.directory
        snapshots = sorted(file.name for file in folder.snapshots.glob("round-*.safetensors"))
        version = (snapshots, (folder.models / "last.safetensors").exists())
        with self._lock:
            if self._parts is None or self._parts[0] != version:
                self._parts = (version, pieces(self.run, None))
            return self._parts[1]


Federation = Callable[[], dict[str, Any]]
"""What a real federation's sites are doing now."""


class Library:
    """The runs of one folder and of the folders in it, or ``only`` the one of that name. Nothing outside it
    is read, whatever a name or a link says. ``federation`` tells of the sites of that one.
    """

    def __init__(self, folder: Path, only: str | None = None, federation: Federation | None = None) -> None:
        self.folder, self.only, self._federation = folder.resolve(), only, federation
        self._known: OrderedDict[str, tuple[object, WatchedRun]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, name: str) -> WatchedRun | None:
        """The run of that name, ``run`` or ``folder/run``, or nothing."""
        above, parts = self.folder, name.split("/")
        if len(parts) > DEPTH or not all(map(is_name, parts)) or self.only not in (None, name):
            return None
        for part in parts[:-1]:
            above = above / part
            if not self._stays(above) or _looks_like_a_run(above):
                return None
        path = above / parts[-1]
        if not self._inside(path):
            return None
        with self._lock:
            version = _version(path)
            held = self._known.pop(name, None)
            if held is None or held[0] != version:
                held = (version, WatchedRun(path, name))
            self._known[name] = held
            while len(self._known) > MOST_RUNS:
                self._known.popitem(last=False)
        return held[1]

    def names(self) -> list[str]:
        """Of all that look like runs; nothing is looked for inside one."""
        return [self.only] if self.only else self._below(self.folder, DEPTH)[:MOST_RUNS]

    def _below(self, folder: Path, depth: int) -> list[str]:
        found: list[str] = []
        for path in _folders(folder):
            if _looks_like_a_run(path):
                found.append(path.name)
            elif depth > 1 and self._stays(path):
                found += [f"{path.name}/{name}" for name in self._below(path, depth - 1)]
        return found

    def statuses(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """The named runs, or all, each in a line; one that cannot be read says why."""
        rows = []
        for name in self.names() if names is None else names:
            try:
                found = self.find(name)
                if found is not None:
                    rows.append(found.status())
            except UNREADABLE as error:
                state = "damaged" if isinstance(error, RunError) else "unreadable"
                rows.append({"name": name, "problem": reported(str(error), 300), "state": state})
        return rows

    def data(self, names: list[str]) -> dict[str, Any] | None:
        """A page about these runs; nothing if one is not there."""
        found = [self.find(name) for name in names]
        runs = [each for each in found if each is not None]
        if not runs or len(runs) < len(found):
            return None
        return page_data([(each.run, each.data()) for each in runs]) | self.federation()

    def federation(self) -> dict[str, Any]:
        """What a page shows of the sites; nothing where there are none, or where they cannot be read."""
        if self._federation is None:
            return {}
        try:
            with self._lock:
                return {"federation": self._federation()}
        except UNREADABLE as error:
            return {"federation": {"problem": reported(str(error), 300)}}

    def _inside(self, path: Path) -> bool:
        """Whether this is a run all of whose files are inside the folder."""
        place = RunDirectory(path)
        if not self._stays(path) or not path.is_dir() or not all(map(self._stays, path.iterdir())):
            return False
        if not place.is_run:
            return False
        folders = (place.snapshots, place.models, place.checkpoints)
        return all(self._stays(entry) for folder in folders if folder.is_dir() for entry in folder.iterdir())

    def _stays(self, path: Path) -> bool:
        """Whether a path that may be a link stays in the folder."""
        return not path.is_symlink() or leads_into(path, self.folder)


def is_name(name: str) -> bool:
    """Whether a text can be the name of a run: one visible part of a path."""
    return bool(name) and not name.startswith(".") and not set(name) & set("/\\\0") and len(name) < 256


def _folders(folder: Path) -> list[Path]:
    """The visible folders in a folder, by name; there may be many other files."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if is_name(entry.name) and entry.is_dir())
    except OSError:
        return []


def _looks_like_a_run(path: Path) -> bool:
    return os.path.lexists(path / "config.toml")


def _version(path: Path) -> object:
    """Changes when a run is replaced by another one of the same name."""
    found = (path / "config.toml").stat()
    return (found.st_ino, found.st_mtime_ns)
