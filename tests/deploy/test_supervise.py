"""Looking after programs: what is ill is started again a few times, and every end is a sentence."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import expiry, operate, programs, supervise
from proxyfl.deploy.live import AGAIN, LiveLog, LiveReader
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.supervise import Illness, Restarts, ServerWatch, has_child


class Clock:
    """Time that passes only when someone sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.slept.append(seconds)

    def time(self):
        return self.now

    def strftime(self, form):
        return "now"


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(supervise, "time", clock)
    return clock


def test_a_log_is_rotated_at_5_mb_and_two_older_files_are_kept(tmp_path):
    """As ``gate.log``: every program of a server writes through it."""
    log, line = programs.PatientLog(tmp_path / "gate.log"), "x" * 1_200_000
    for number in range(20):
        log.emit(logging.LogRecord("gate", logging.INFO, "", 0, f"{number:02d} {line}", None, None))
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["gate.log", "gate.log.1", "gate.log.2"]
    assert all(file.stat().st_size < 5_000_000 for file in files)
    assert files[0].read_text().splitlines()[-1].startswith("19 ")
    assert files[2].stat().st_size > 4_000_000


def program(said=(), ended=None, failure="", lives=None):
    """A program that ends after so many looks with these words."""
    looks = iter(range(lives)) if lives is not None else iter(lambda: 0, 1)

    class Fake(SimpleNamespace):
        @property
        def ended(self):
            return None if next(looks, None) is not None else 7

        def wait(self, seconds):
            supervise.time.sleep(seconds)
            return self.ended

        def failure(self):
            return failure

    return Fake(said=list(said), process=SimpleNamespace(pid=os.getpid()), log="a.log")


def test_restarts_wait_longer_each_time_and_are_given_up_with_a_sentence(clock):
    restarts = Restarts("the server")
    assert [restarts.pause("ill") for _ in range(supervise.RESTARTS)] == [2, 4, 8, 16, 32, 60]
    with pytest.raises(RunError, match=r"ill; the server .*6 times"):
        restarts.pause("ill")
    clock.sleep(supervise.WITHIN + 1)
    assert restarts.pause("ill") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_lost_runner_is_noticed_after_a_few_looks():
    words = [sys.executable, "-c", "import time; time.sleep(60)", supervise.RUNNER]
    illness = Illness(SimpleNamespace(process=SimpleNamespace(pid=os.getpid())))
    assert [illness.look() for _ in range(9)] == [""] * 9, "one that was never there is not lost"
    child = subprocess.Popen(words)
    try:
        assert has_child(os.getpid(), supervise.RUNNER)
        assert illness.look() == ""
    finally:
        child.kill()
    while has_child(os.getpid(), supervise.RUNNER):
        pass
    found = [illness.look() for _ in range(supervise.MISSES + 1)]
    child.wait()
    assert found == [""] * supervise.MISSES + ["flower-superexec ended by itself"]


def test_a_server_that_does_not_answer_is_ill_only_when_it_lasts():
    illness = Illness(SimpleNamespace(process=SimpleNamespace(pid=os.getpid())))
    for _ in range(3):
        assert [illness.look(False) for _ in range(supervise.MISSES)] == [""] * supervise.MISSES
        assert illness.look(True) == ""
    found = [illness.look(False) for _ in range(supervise.MISSES + 1)]
    assert found[-1] == "the SuperLink does not answer"


@pytest.fixture
def watched(own_trial, clock, monkeypatch):
    """A server whose programs are played: ``lives`` are taken one after the other."""
    made, said = Deployment.read(own_trial), []
    watch = ServerWatch(made, said.append)
    submitted = []
    monkeypatch.setattr(operate, "answers", lambda *words: True)
    monkeypatch.setattr(operate, "is_running", lambda deployment: bool(watch.going))
    monkeypatch.setattr(
        operate, "submit", lambda deployment: submitted.append(1) or str(100 + len(submitted))
    )
    monkeypatch.setattr(supervise.shutil, "disk_usage", lambda place: SimpleNamespace(free=10**12))

    def play(*lives):
        lives = list(lives)

        @contextmanager
        def server(deployment, say):
            if isinstance(lives[0], Exception):
                raise lives.pop(0)
            yield lives.pop(0)

        monkeypatch.setattr(operate, "server", server)

    return SimpleNamespace(
        watch=watch,
        said=said,
        play=play,
        submitted=submitted,
        live=LiveLog(watch.reader.file, made.sites, "5"),
    )


def assert_said(watched, facts, first=None):
    """One line for each fact, in this order."""
    for line, fact in zip(watched.said[:first], facts, strict=True):
        assert fact in line


def test_a_superlink_that_ends_is_started_again_and_the_run_goes_on(watched):
    ends = program(failure="ERROR: out of memory", lives=3)
    watched.play((ends,), (program(lives=2),), ConfigError("no certificate"))
    watched.live.tell("began")
    watched.live.tell("round", round=1, clients=[0], text="round 1 …")
    with pytest.raises(ConfigError, match="no certificate"):
        watched.watch.serve(lambda: watched.said.append("ready"))
    facts = ["ready", "round 1", "(ERROR: out of memory); starting again in 2 s"]
    facts += ["ready", "continues from its last checkpoint", "(exit code 7); starting again in 4 s"]
    assert_said(watched, facts)
    assert watched.submitted == [1]
    told = [line for line in LiveReader(watched.live.file).new() if line["event"] == AGAIN]
    assert [(line["run"], line["text"]) for line in told] == [("5", watched.said[n]) for n in (2, 4, 5)]


def test_a_finished_run_is_not_started_again(watched):
    watched.live.tell("began")
    watched.live.tell("finished", text="finished")
    watched.play((program(lives=2),), (program(lives=2),), ConfigError("enough"))
    with pytest.raises(ConfigError, match="enough"):
        watched.watch.serve(lambda: None)
    assert watched.submitted == []


def test_a_gate_that_ends_is_named(watched):
    watched.play((program(), program(failure="ERROR: no", lives=1)), ConfigError("enough"))
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert_said(watched, ["the gate ended by itself (ERROR: no)"])


def test_a_database_that_cannot_be_written_is_an_illness(watched):
    said = ["sqlite3.OperationalError: database or disk is full"]
    watched.play((program(said),), ConfigError("enough"))
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert_said(watched, ["could not write its database; starting again in 2 s"])


def test_a_full_disk_is_waited_for_and_then_the_run_goes_on(watched, monkeypatch):
    free = iter([10**9, 10**6, 10**6, 10**9, 10**9])
    monkeypatch.setattr(supervise.shutil, "disk_usage", lambda place: SimpleNamespace(free=next(free)))
    watched.play((program(),), (program(lives=1),), ConfigError("enough"))
    watched.live.tell("began")
    watched.live.tell("stopped", reason="writing run failed", text="stopped: full", full=True)
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: watched.said.append("ready"))
    disk = f"disk of {watched.watch.deployment.path}"
    facts = [
        "ready",
        "stopped: full",
        f"{disk} was full; starting again in 2 s",
        f"1 MB are left on the {disk}",
    ]
    assert_said(watched, [*facts, "ready", "continues from its last checkpoint"], first=6)
    assert watched.submitted == [1]


@pytest.mark.parametrize(("state", "again"), [("finished:failed", 1), ("finished:stopped", 0)])
def test_a_run_whose_process_is_gone_goes_on_unless_it_was_stopped(watched, monkeypatch, state, again):
    monkeypatch.setattr(operate, "is_running", lambda deployment: False)
    monkeypatch.setattr(operate, "state_of", lambda deployment, run: state)
    watched.play((program(lives=20),), ConfigError("enough"))
    watched.live.tell("began")
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert len(watched.submitted) == again


def test_a_gate_without_a_sign_of_life_is_started_again(watched, clock):
    from proxyfl.deploy.gate import sign_of_life

    alive = sign_of_life(watched.watch.deployment)
    alive.parent.mkdir(exist_ok=True)
    alive.touch()
    os.utime(alive, (clock.now, clock.now))
    watched.play((program(), program()), ConfigError("enough"))
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert watched.said == ["the gate does not answer; starting again in 2 s"]
    assert supervise.SILENT < clock.now - 1000 < supervise.SILENT + 10


def test_a_gate_lives_as_long_as_its_sign_changes_whatever_the_clock_says(tmp_path, clock):
    alive = tmp_path / "gate.alive"
    sign = supervise.SignOfLife(alive)
    assert not sign.is_missing()
    for jump in (0, 3 * 3600, -5 * 3600):
        for second in range(1, 60):
            clock.now += 1
            alive.touch()
            os.utime(alive, (clock.now + jump, clock.now + jump))
            assert not sign.is_missing(), (jump, second)
    clock.now += supervise.SILENT + 1
    assert sign.is_missing()


def test_a_site_s_words_about_a_full_disk_do_not_count(watched):
    watched.live.tell("began")
    watched.live.tell("stopped", reason="client 1: No space left on device", text="stopped")
    watched.play((program(lives=3),), ConfigError("enough"))
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert watched.submitted == []


def test_a_stop_that_was_asked_for_outlasts_a_crash(watched):
    from proxyfl.deploy.stopping import ask_to_stop

    watched.live.tell("began")
    watched.play((program(lives=2),), (program(lives=2),), ConfigError("enough"))
    ask_to_stop(watched.watch.deployment)
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert watched.submitted == []
    assert any("stopped, as requested" in line for line in watched.said)


def ageing(clock, monkeypatch):
    """Certificates with 35 days left when the clock begins, looked at twice a day."""
    day, begun = 86_400, clock.now
    monkeypatch.setattr(expiry.pki, "days_left", lambda file: 35 - int((clock.now - begun) / day))
    monkeypatch.setattr(supervise, "LOOK", day / 2)


def announced(said, name):
    """Days left, as the notes about a certificate have them."""
    notes = [line for line in said if line.startswith("note: ") and f"/{name} " in line]
    return [int(line.partition("expires in ")[2].split()[0]) for line in notes]


def test_a_server_that_runs_for_long_announces_daily_what_expires(watched, clock, monkeypatch):
    ageing(clock, monkeypatch)
    watched.play((program(lives=20),), (program(lives=1),), (program(lives=1),), ConfigError("enough"))
    with pytest.raises(ConfigError):
        watched.watch.serve(lambda: None)
    assert announced(watched.said, "server.crt") == [29, 28, 27, 26, 25, 24, 23]


def test_a_site_that_runs_for_long_announces_daily_what_expires(own_trial, clock, monkeypatch):
    ageing(clock, monkeypatch)
    said, lives = [], [program(lives=20), program(lives=2)]

    @contextmanager
    def site(*words):
        if not lives:
            raise ConfigError("enough")
        yield lives.pop(0)

    monkeypatch.setattr(operate, "site", site)
    monkeypatch.setattr(operate, "look", lambda *words: None)
    monkeypatch.setattr(operate, "require_approval", lambda *words: None)
    with pytest.raises(ConfigError, match="enough"):
        supervise.take_part(Site.read(own_trial / "site-01"), "data", said.append)
    assert announced(said, "site.crt") == [29, 28, 27, 26, 25, 24]


def lyon(folder):
    """A site's settings, as far as they matter here; without keys there is nothing to approve."""
    names = {"name": "lyon", "server": "fl.example.org:8000", "insecure": True}
    return SimpleNamespace(**names, path=folder, state=folder / "state")


def test_a_site_whose_port_was_taken_starts_again_with_another(clock, monkeypatch, tmp_path):
    said, tries = [], []

    @contextmanager
    def site(*words):
        tries.append(1)
        raise RunError("the guard of Flower's local port does not work")
        yield

    monkeypatch.setattr(operate, "site", site)
    monkeypatch.setattr(operate, "look", lambda *words: None)
    settings = lyon(tmp_path)
    with pytest.raises(RunError, match="gives up"):
        supervise.take_part(settings, "data", said.append)
    assert len(tries) == supervise.RESTARTS + 1


def test_a_halted_program_is_ill():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        illness = Illness(SimpleNamespace(process=SimpleNamespace(pid=child.pid)))
        while not supervise.is_halted(child.pid):
            pass
        found = [illness.look() for _ in range(supervise.MISSES + 1)]
    finally:
        child.kill()
        child.wait()
    assert found == [""] * supervise.MISSES + ["Flower's program was halted"]


def test_a_first_start_that_fails_is_the_end(watched):
    watched.play(RunError("port 8000 is taken"))
    with pytest.raises(RunError, match="port 8000 is taken"):
        watched.watch.serve(lambda: None)


def test_a_site_that_is_turned_away_waits_and_one_that_crashes_gives_up(clock, monkeypatch, tmp_path):
    said, lives = [], []

    @contextmanager
    def site(*words):
        yield lives.pop(0)

    monkeypatch.setattr(operate, "site", site)
    monkeypatch.setattr(operate, "look", lambda *words: None)
    settings = lyon(tmp_path)
    away = f"ERROR {supervise.UNKNOWN_KEY}: no"
    lives += [program(failure=away, lives=1) for _ in range(50)]
    lives += [program(failure="INFO: SuperNode terminated gracefully.", lives=1)]
    lives += [program(failure="INFO: something", lives=1) for _ in range(supervise.RESTARTS + 1)]
    with pytest.raises(RunError, match=r"lyon .*exit code 7 \(see .*supernode\.log\)"):
        supervise.take_part(settings, "data", said.append)
    assert lives == []
    assert not any("gracefully" in line for line in said)
    waits = [line for line in said if "rejected it" in line]
    assert len(waits) == 51
    assert waits[-1].endswith("starting again in 60 s")


def test_a_supernode_without_its_sign_of_life_is_started_again(clock, monkeypatch):
    ill = program(["Exception in thread Thread-1 (_run):"])
    reminder = supervise.Reminder(list, print)
    assert supervise._watch_site(ill, reminder) == "Flower's SuperNode had stopped sending its heartbeat"


def test_the_journal_has_the_time_and_bears_a_full_disk(tmp_path, clock):
    said = []
    supervise.Journal(tmp_path / "server.log", said.append)("hello")
    assert (tmp_path / "server.log").read_text() == "now hello\n"
    supervise.Journal(tmp_path / "no" / "where.log", said.append)("still said")
    assert said == ["hello", "still said"]


def test_what_a_run_writes_down_is_read_across_a_file_begun_anew(own_trial, monkeypatch):
    from proxyfl.deploy import live

    monkeypatch.setattr(live, "LIVE_BYTES", 300)
    file = own_trial / "state" / "live.jsonl"
    log, reader = LiveLog(file, ("a",), "1"), live.LiveReader(file)
    seen = []
    for number in range(40):
        log.tell("note", number=number)
        if number % 3 == 0:
            seen += reader.new()
    assert [line["number"] for line in seen] == list(range(40))
    assert file.stat().st_size < 500
    with file.open("a") as more:
        more.write('{"event": "torn')
    LiveLog(file, ("a",), "2").tell("note", number=99)
    assert [line["number"] for line in reader.new()] == [99]
