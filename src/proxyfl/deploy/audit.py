"""Who did what, at a server or a site: lines of JSON to which each next one holds the hash of the one before.

``audit.jsonl`` is only ever added to; at a size it is put aside under the number of its last line, and the
chain goes on. ``audit.head`` holds number and hash of the last line, so that a cut is seen, too. Whoever owns
the account could write all of it anew: a head that was noted elsewhere (``N:HASH``) shows that.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import io
import json
import os
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import append_bytes, clear_asides, opened, read_bounded, sync_folder, write_bytes
from proxyfl.core.locks import held
from proxyfl.core.text import one_line, reported
from proxyfl.deploy.post import private

FOLDER, FILE, HEAD = "audit", "audit.jsonl", "audit.head"
PART_BYTES = 5_000_000
"""A file is put aside at this size."""
LONGEST, LONGEST_TEXT = 64_000, 1000
"""Bytes of a line, and characters of a text in it: longer ones are cut, since they may be from elsewhere."""
MOST_NAMED = 50
"""Sites that a line names."""
PATIENCE = 30.0
"""Seconds that a line waits for another process to finish writing one."""
RECENT = 1000
"""So many of the last lines are kept in memory when a log is looked at."""
REPAIRED, DAMAGED = "repaired", "damaged"
"""What the log says of itself: a line that a crash left unfinished; lines that are gone or were changed."""


class Mark(NamedTuple):
    """The number of a line and its SHA-256, as ``12:9f86…``."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"

    @classmethod
    def read(cls, text: str) -> Mark:
        found = re.fullmatch(r"(\d{1,12}):([0-9a-f]{64})", text.strip())
        if not found:
            raise ConfigError(
                f"'{reported(text, 80)}' is not a mark of a log; give it as 'deploy audit' prints it"
            )
        return cls(int(found[1]), found[2])


START = Mark(0, "0" * 64)


class Last(NamedTuple):
    """The last line of a log, and the hash that it holds of the one before it."""

    mark: Mark
    before: str

    @classmethod
    def of(cls, raw: bytes) -> Last:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            line = json.loads(raw)
            return cls(Mark(int(line["n"]), hashlib.sha256(raw).hexdigest()), str(line["before"]))
        return cls(Mark(0, ""), "")  # no line of a log: whatever follows does not fit

    def goes_on_from(self, mark: Mark) -> bool:
        """Whether it is the line behind ``mark``: a crash came before the head was written."""
        return self.mark.number == mark.number + 1 and self.before == mark.digest


@dataclass
class Verified:
    """What was found in an unbroken log: how often what happened, the last lines, and the head."""

    head: Mark = START
    events: Counter[str] = field(default_factory=Counter)
    lines: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    notes: list[str] = field(default_factory=list)

    def take(self, line: dict[str, Any]) -> None:
        self.events[line["event"]] += 1
        self.lines.append(line)


class AuditLog:
    """The log below a deployment's or a site's folder."""

    def __init__(self, place: Path) -> None:
        self.folder = place / FOLDER
        self.file, self.head = self.folder / FILE, self.folder / HEAD

    def add(self, event: str, **details: Any) -> Mark:
        """One line, on the disk before this returns. What cannot be written is an error: no work unnoted."""
        lock, taken = self.folder / ".lock", f"{self.file} is being written"
        try:
            private(self.folder)
            with held(lock, taken, remove=False, patience=PATIENCE):
                clear_asides(self.folder)
                return self._write(self._repaired(), event, details)
        except OSError as error:
            raise RunError(
                f"{self.file} cannot be written ({error.strerror or error}), and nothing is done without "
                "being logged; free disk space or make it writable"
            ) from error

    def _write(self, last: Mark, event: str, details: dict[str, Any]) -> Mark:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"n": last.number + 1, "time": now, "event": event, "by": user(), **_cut(details)}
        raw = json.dumps({**line, "before": last.digest}, allow_nan=False).encode()
        if len(raw) > LONGEST:
            raise RunError(f"a line of {self.file} would have {len(raw):,} bytes; at most {LONGEST:,} may be")
        self._append(raw + b"\n", last)
        self.file.chmod(0o600)
        mark = Mark(last.number + 1, hashlib.sha256(raw).hexdigest())
        write_bytes(self.head, f"{mark}\n".encode())
        return mark

    def _append(self, line: bytes, last: Mark) -> None:
        """At its size the file is put aside, with the line in a new one: the last line is always in the file,
        so that all parts may be moved elsewhere, also to make room on a full disk.
        """
        if not self.file.is_file() or self.file.stat().st_size <= PART_BYTES:
            append_bytes(self.file, line)
            return
        begun = self.folder / f".{FILE}.{os.getpid()}.aside"
        append_bytes(begun, line)
        self.file.rename(self.folder / f"audit-{last.number:010d}.jsonl")
        begun.rename(self.file)
        sync_folder(self.folder)

    def _repaired(self) -> Mark:
        """Behind which line the next one goes. What a crash left is cut off, and a line says so; where
        somebody cut lines off or changed them, the chain stays broken for ever.
        """
        noted, (last, torn) = self._noted(), self._last()
        if torn:
            os.truncate(self.file, self.file.stat().st_size - len(torn))
        if last.mark != noted and not (noted and last.goes_on_from(noted)):
            why = f"number {noted.number} should be the last line" if noted else "the head was gone"
            return self._write(noted or last.mark, DAMAGED, {"found": last.mark.number, "reason": why})
        if torn:
            sha256 = hashlib.sha256(torn).hexdigest()
            return self._write(last.mark, REPAIRED, {"bytes": len(torn), "sha256": sha256})
        return last.mark

    def _noted(self) -> Mark | None:
        """What the head says; None where it is missing or damaged. A new log has none to miss."""
        with contextlib.suppress(OSError, ConfigError, RunError, ValueError):
            return Mark.read(read_bounded(self.head, 1, 1000).decode())
        if self.head.exists() or any(self._parts()):
            return None
        return START if self._begun() else None

    def _begun(self) -> bool:
        """Whether there is no file, or what a program leaves that ends before it writes the first head: the
        first line of a chain, or a part of it. Whoever cuts a log to that could as well write one anew: a
        mark that was recorded elsewhere shows both.
        """
        if not self.file.exists():
            return True
        with contextlib.suppress(OSError, RunError):
            first, end, rest = read_bounded(self.file, most=LONGEST + 1).partition(b"\n")
            return not rest and (not end or Last.of(first).goes_on_from(START))
        return False

    def _last(self) -> tuple[Last, bytes]:
        """The last whole line of the file or of the part before it, and what is unfinished behind it."""
        torn = b""
        for file in (self.file, *reversed(list(self._parts()))):
            if not file.is_file() or not file.stat().st_size:
                continue
            with file.open("rb") as lines:
                lines.seek(max(0, file.stat().st_size - 3 * LONGEST))
                whole, end, rest = lines.read().rpartition(b"\n")
            torn = rest if file == self.file else torn
            if end:
                return Last.of(whole.rpartition(b"\n")[2]), torn
        return Last(START, ""), torn

    def _parts(self) -> Iterator[Path]:
        yield from sorted(self.folder.glob("audit-*.jsonl"))

    def verify(self, since: Mark | None = None) -> Verified:
        """The log as it was written, from ``since`` on; else a :class:`RunError` names the line."""
        noted = self._noted()  # before the lines, of which a program may add more meanwhile
        parts, newest = self._parts_and_newest()
        if not parts and newest is None:
            raise RunError(f"{self.file} does not exist; a server or site that was started has one")
        if noted is None:
            raise RunError(f"{self.head} is missing or damaged: lines at the end may be gone")
        found, last = Verified(), Last(since or START, "")
        complete = last.mark == noted
        for file, place, raw in _lines(parts, self.file, newest or b""):
            if not raw.endswith(b"\n"):
                if file != self.file:
                    raise RunError(f"{file}, line {place} is incomplete; what followed it is missing")
                found.notes.append("the last line was being written when its program ended")
                break
            line, now = _read(file, raw[:-1], place), Last.of(raw[:-1])
            if since and now.mark.number == since.number:
                if now.mark != since:
                    raise RunError(
                        f"{file}, line {place}: number {since.number} is not the one that was recorded"
                    )
                complete = complete or now.goes_on_from(noted)  # a crash came before the head was written
            if not since or now.mark.number > since.number:
                _follows(file, place, line, last.mark)
                found.take(line)
                last = now
                complete = complete or last.mark == noted
        if since and noted.number < since.number and not complete:
            raise RunError(f"number {since.number}, which was recorded elsewhere, is not in {self.folder}")
        if not complete or not self._ahead(last, noted):
            cut = "what follows was cut off" if last.mark.number < noted.number else "it was changed"
            raise RunError(
                f"{self.file} ends with number {last.mark.number}, the head says {noted.number}: {cut}"
            )
        found.head = last.mark
        if repaired := found.events[REPAIRED]:
            found.notes.append(f"{repaired} unfinished line(s) were cut off after a crash")
        return found

    def _parts_and_newest(self) -> tuple[list[Path], bytes | None]:
        """The parts put aside, and the bytes of the file behind them; read again if it was put aside, too."""
        while True:
            parts, newest = list(self._parts()), None
            with contextlib.suppress(FileNotFoundError):
                newest = read_bounded(self.file)
            if parts == list(self._parts()):
                return parts, newest

    def _ahead(self, last: Last, noted: Mark) -> bool:
        """Whether lines behind the head that was read first are those of a program that writes or crashed."""
        if last.mark == noted or last.goes_on_from(noted):
            return True
        now = self._noted()
        return now is not None and now.number >= last.mark.number - 1


def listed(names: Sequence[str], what: str = "sites") -> dict[str, Any]:
    """Sites in a line of bounded length: of many, the first, how many, and a hash of all names."""
    if len(names) <= MOST_NAMED:
        return {what: list(names)}
    sha256 = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return {what: list(names[:MOST_NAMED]), "count": len(names), f"{what}_sha256": sha256}


def _cut(details: dict[str, Any]) -> dict[str, Any]:
    """No text from elsewhere may keep a line out of the log by its length."""
    long = {name for name, value in details.items() if isinstance(value, str) and len(value) > LONGEST_TEXT}
    return {name: one_line(value, LONGEST_TEXT) if name in long else value for name, value in details.items()}


def _lines(parts: Sequence[Path], file: Path, newest: bytes) -> Iterator[tuple[Path, int, bytes]]:
    for part in parts:
        with opened(part) as lines:
            yield from ((part, place, raw) for place, raw in enumerate(_raw(part, lines), 1))
    yield from ((file, place, raw) for place, raw in enumerate(_raw(file, io.BytesIO(newest)), 1))


def _follows(file: Path, place: int, line: dict[str, Any], last: Mark) -> None:
    """Raise where a line does not go on from the one before."""
    where, number = f"{file}, line {place}", line["n"]
    if line["event"] == DAMAGED:
        raise RunError(f"{where}: lines before it were cut off or changed: {line.get('reason')}")
    if number != last.number + 1:
        missing = f"; {last.number + 1} to {number - 1} are missing" if number > last.number else ""
        raise RunError(f"{where}: it has number {number} behind number {last.number}{missing}")
    if line.get("before") != last.digest:
        raise RunError(f"{where}: number {last.number} before it was changed")


def _raw(file: Path, lines: IO[bytes]) -> Iterator[bytes]:
    while raw := lines.readline(LONGEST + 2):
        if len(raw.rstrip(b"\n")) > LONGEST:
            raise RunError(f"{file} has a line of more than {LONGEST:,} bytes, which no log has")
        yield raw


def _read(file: Path, raw: bytes, place: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        line = json.loads(raw)
        if isinstance(line, dict) and type(line.get("n")) is int and isinstance(line.get("event"), str):
            return line
    raise RunError(f"{file}, line {place}: this is not a line of a log; it was changed")


def user() -> str:
    """Whose account runs this program. The environment, which anybody can set, counts only on systems without
    accounts of POSIX.
    """
    try:
        import pwd
    except ImportError:
        with contextlib.suppress(OSError, KeyError, ImportError):
            return getpass.getuser()
        return "unknown"
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container that is started with a number alone
        return str(os.getuid())
