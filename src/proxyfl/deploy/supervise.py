"""Looks after Flower's programs: one that ended or is ill is started again, a few times.

``proxyfl deploy server`` and ``site`` stay in here until they are stopped, or give up with a sentence.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError
from proxyfl.deploy import expiry, operate, signers
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.gate import sign_of_life
from proxyfl.deploy.live import AGAIN, ENDS, LIVE_FILE, LiveLog, LiveReader
from proxyfl.deploy.openmetrics import served
from proxyfl.deploy.post import Post
from proxyfl.deploy.programs import PatientLog, Program
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.stopping import stop_asked

LOOK = 2.0
"""Seconds between two looks at the programs."""

MISSES = 3
"""So many looks in a row must find something wrong: a busy machine is no illness."""

RESTARTS, WITHIN = 6, 900.0
"""More restarts than that within so many seconds, and the command gives up."""

PAUSE, PAUSE_LAST = 2.0, 60.0
"""Seconds before a program is started again: few at first, then more."""

ROOM, LITTLE = 10_000_000, 200_000_000
"""Bytes on the disk without which nothing is started, and below which it is said that there are few."""

DAY = 86_400.0
"""Seconds between two announcements of the same certificates."""

RUNNER = "flower-superexec"
"""The program of Flower's that starts apps, below its SuperLink or SuperNode."""

DATABASE = "OperationalError"
"""In what a SuperLink says that cannot write its database. What sites send cannot hold it: see the gate."""

SILENT = 30.0
"""Seconds without a sign of life after which the gate is ill."""

THREAD = "Exception in thread"
"""What a program says that goes on with a part of it dead, as a SuperNode without its sign of life."""

UNKNOWN_KEY, GRACEFUL = "Failed to activate SuperNode", "terminated gracefully"
"""What a SuperNode says that was turned away, at once or later."""

Say = Callable[[str], None]


class Restarts:
    """How often something was started again; too often, and it is given up."""

    def __init__(self, what: str) -> None:
        self.what, self.times = what, deque[float]()

    def pause(self, why: str) -> float:
        """Seconds to wait before the next start."""
        now = time.monotonic()
        self.times.append(now)
        while self.times[0] < now - WITHIN:
            self.times.popleft()
        if len(self.times) > RESTARTS:
            raise RunError(f"{why}; {self.what} was started again {RESTARTS} times and gives up")
        return float(min(PAUSE * 2 ** (len(self.times) - 1), PAUSE_LAST))


class Journal:
    """What is said goes to the console and, with the time, to a file of bounded size."""

    def __init__(self, file: Path, say: Say) -> None:
        self.say, self.log = say, PatientLog(file)

    def __call__(self, text: str) -> None:
        self.say(text)
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
        self.log.emit(logging.LogRecord("", logging.INFO, "", 0, "%s", (line,), None))


class Reminder:
    """Notes on certificates that expire soon, for a program that runs for months: at most once a day."""

    def __init__(self, notes: Callable[[], list[str]], say: Say, wait: float = 0.0) -> None:
        self.notes, self.say, self.due = notes, say, time.monotonic() + wait

    def look(self) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + DAY
        for note in self.notes():
            self.say(f"note: {note}")


class ServerWatch:
    """The server's programs, and the run that they play."""

    def __init__(self, deployment: Deployment, say: Say) -> None:
        self.deployment, self.say = deployment, say
        self.reader = LiveReader(deployment.state / LIVE_FILE)
        self.reader.new()  # what was before is reported already
        self.restarts = Restarts("the server")
        self.reminder = Reminder(lambda: expiry.of_server(self.deployment), say)
        self.going, self.begun = "", False
        """Flower's number of the run that is to be played, and whether that has begun."""
        self.owed, self.last = False, ""
        """Whether a run that was played is to go on, and Flower's number of the one that began last."""

    def serve(self, ready: Callable[[], None]) -> NoReturn:
        """Keep the server up; it ends by a signal or a :class:`RunError`."""
        began = False
        while True:
            self._await_room()
            try:
                self.deployment = Deployment.read(self.deployment.path)  # sites may have been added
                with operate.server(self.deployment, self.say) as programs:
                    began = True
                    ready()
                    self.reminder.look()
                    self._go_on()
                    why = self._watch(programs)
            except ConfigError:
                raise
            except (ProxyFLError, OSError) as error:
                if not began:
                    raise
                why = str(error)
            self.owed, self.going, self.begun = self.owed or bool(self.going), "", False
            pause = self.restarts.pause(why)
            self._announce(f"{why}; starting again in {pause:.0f} s")
            time.sleep(pause)

    def _watch(self, programs: Sequence[Program]) -> str:
        """Look until something is wrong that only a new start cures; says what."""
        illness, gate, idle = Illness(programs[0]), SignOfLife(sign_of_life(self.deployment)), 0
        while True:
            time.sleep(LOOK)
            self._tell_news()
            self.reminder.look()
            for program in programs:
                if program.ended is not None:
                    name = "SuperLink" if program is programs[0] else "gate"
                    return f"the {name} ended by itself ({_cause(program)})"
            if any(DATABASE in line for line in programs[0].said):
                return "the SuperLink could not write its database"
            if self.owed and not self.going:
                return f"the disk of {self.deployment.path} was full"
            if why := illness.look(operate.answers(self.deployment)):
                return why
            if len(programs) > 1 and gate.is_missing():
                return "the gate does not answer"
            idle = idle + 1 if self.begun and not operate.is_running(self.deployment) else 0
            if idle > MISSES:
                idle = self._play_again()

    def _tell_news(self) -> None:
        """What the run wrote down, on the server's own console; remembers whether one is being played."""
        for line in self.reader.new():
            if "text" in line and line["event"] != AGAIN:
                self.say(str(line["text"]))
            self._note(line)

    def _announce(self, text: str) -> None:
        """On the server's own console, and to who follows a run that is to go on."""
        self.say(text)
        if self.owed:
            self._live(self.last).tell(AGAIN, text=text)

    def _live(self, run: str) -> LiveLog:
        return LiveLog(self.deployment.state / LIVE_FILE, self.deployment.sites, run)

    def _note(self, line: dict[str, Any]) -> None:
        if line["event"] == "began":
            self.going = self.last = str(line.get("run"))
            self.begun, self.owed = True, False
        elif line["event"] in ENDS and str(line.get("run")) == self.going:
            self.going, self.begun, self.owed = "", False, line.get("full") is True

    def _play_again(self) -> int:
        """The run's process is gone without a word: unless it was stopped, it goes on."""
        run, self.going, self.begun = self.going, "", False
        if "stopped" in operate.state_of(self.deployment, run):
            return 0
        time.sleep(self.restarts.pause("the run's process ended without a message"))
        self.owed = True
        self._announce("the run's process ended without a message")
        self._go_on()
        return 0

    def _go_on(self) -> None:
        if self.owed and stop_asked(self.deployment):
            self.owed = False
            text = "stopped, as requested; the checkpoint is kept"
            self._live("").tell("stopped", asked=True, reason=text, text=text)
        if self.owed:
            self._announce("the run continues from its last checkpoint")
            self.going, self.owed = operate.submit(self.deployment), False

    def _await_room(self) -> None:
        """Wait while the disk is full: nothing that is started then would last."""
        place, reported = self.deployment.path, 0.0
        while (free := shutil.disk_usage(place).free) < LITTLE:
            if not reported or time.monotonic() - reported > WITHIN:
                reported = time.monotonic()
                self.say(f"{free // 10**6} MB are left on the disk of {place}; make room")
            if free >= ROOM:
                return
            time.sleep(LOOK)


class SignOfLife:
    """A file that a program touches all the time. That its time changes is what counts: clocks may be set."""

    def __init__(self, file: Path) -> None:
        self.file, self.touched, self.seen = file, 0.0, time.monotonic()

    def is_missing(self) -> bool:
        try:
            touched = self.file.stat().st_mtime
        except OSError:
            return False
        if touched != self.touched:
            self.touched, self.seen = touched, time.monotonic()
        return time.monotonic() - self.seen > SILENT


class Illness:
    """What is wrong with a program that has not ended, found when it was so for several looks."""

    def __init__(self, program: Program) -> None:
        self.program, self.had_runner = program, False
        self.misses = 0

    def look(self, answers: bool = True) -> str:
        runs = has_child(self.program.process.pid, RUNNER)
        self.had_runner = self.had_runner or runs
        lost, halted = self.had_runner and not runs, is_halted(self.program.process.pid)
        self.misses = self.misses + 1 if lost or halted or not answers else 0
        if self.misses <= MISSES:
            return ""
        if halted:
            return "Flower's program was halted"
        return f"{RUNNER} ended by itself" if lost else "the SuperLink does not answer"


def serve(deployment: Deployment, say: Say, ready: Callable[[], None]) -> NoReturn:
    """Run the server until it is stopped; one command at a time may."""
    with operate.supervisor(deployment).taken(), served(deployment, say):
        AuditLog(deployment.path).add("server started", address=deployment.address, pid=os.getpid())
        ServerWatch(deployment, Journal(deployment.state / "server.log", say)).serve(ready)


def take_part(settings: Site, data: Path, say: Say, address: str = "") -> NoReturn:
    """Run a site until it is stopped; one command at a time may.

    A server that is offline or does not let it in is waited for.
    """
    with Post(settings.state, settings.name).taken():
        _take_part(settings, data, say, address)


def _take_part(settings: Site, data: Path, say: Say, address: str) -> NoReturn:
    operate.look(settings, data, say)
    operate.require_approval(settings)
    AuditLog(settings.path).add(
        "site started",
        server=address or settings.server,
        pid=os.getpid(),
        **signers.identity(settings),
    )
    restarts = Restarts(settings.name)
    reminder = Reminder(lambda: expiry.of_site(settings), say, DAY)  # the first ones came with the look
    pause, began = PAUSE, 0.0
    while True:
        began = time.monotonic()
        log = settings.state / "supernode.log"
        try:
            with operate.site(settings, data, say, address) as program:
                say(f"{settings.name} is starting; server {address or settings.server}")
                why = _watch_site(program, reminder)
        except ConfigError:
            raise
        except (RunError, OSError) as error:  # another program was quicker to take its port, a full disk
            why = str(error)
        if UNKNOWN_KEY in why or GRACEFUL in why:
            pause = PAUSE if time.monotonic() - began > WITHIN / 10 else min(2 * pause, PAUSE_LAST)
            why = "the server rejected it"
        else:
            pause = restarts.pause(f"{settings.name} could not take part: {why} (see {log})")
        say(f"{settings.name}: {why}; starting again in {pause:.0f} s")
        time.sleep(pause)


def _watch_site(program: Program, reminder: Reminder) -> str:
    illness = Illness(program)
    while program.wait(LOOK) is None:
        reminder.look()
        if any(THREAD in line for line in program.said):
            return "Flower's SuperNode had stopped sending its heartbeat"
        if why := illness.look():
            return why
    return _cause(program)


def _cause(program: Program) -> str:
    """Why a program ended, as it says itself; what it says at a proper end is no reason."""
    said, code = program.failure(), program.ended or 0
    if code < 0:
        return f"killed by signal {-code}"
    return said if said.startswith("ERROR") or GRACEFUL in said else f"exit code {program.ended}"


def is_halted(pid: int) -> bool:
    """Whether a process was stopped and does nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def has_child(pid: int, name: str) -> bool:
    """Whether a living child of a process runs this program, as Linux lists them."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            words = stat.with_name("cmdline").read_bytes().split(b"\0")
            if int(parent) == pid and state != "Z" and name.encode() in words:
                return True
        except (OSError, ValueError):  # it ended meanwhile
            continue
    return False
