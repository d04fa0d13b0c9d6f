"""Attacks on a federation at work, with the real programs: by other accounts, by a site, by a foreign app.

And what is left when the commands are killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from foreign import foreign_app, submitted_by
from loopback import PATIENCE, deployment, descendants, experiment, loopback, wait_for
from test_launch import WITHIN, as_root, attack

from proxyfl.deploy import launch, operate
from proxyfl.deploy.live import LIVE_FILE, LiveReader
from proxyfl.deploy.programs import ask_flwr
from toybox import gone

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


def listening(started) -> set[tuple[str, int]]:
    """The addresses, as Linux writes them, and ports at which a verb's programs listen."""
    inodes = set()
    for pid in [started.process.pid, *descendants(started.process.pid)]:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(str(link.readlink()))
    found = set()
    for line in [
        line for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()
    ]:
        cells = line.split()
        if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
            found.add((cells[1].split(":")[0], int(cells[1].split(":")[1], 16)))
    return found


def stolen_secret(federation) -> str:
    """A task's secret, as root finds it in the environment of the process that works on the task."""
    for pid in [pid for one in federation.started.values() for pid in descendants(one.process.pid)]:
        with contextlib.suppress(OSError):
            for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if word.startswith(launch.TOKEN.encode() + b"="):
                    return word.decode().partition("=")[2]
    return ""


def secrets_on_command_lines(federation) -> list[str]:
    found = []
    for pid in [pid for one in federation.started.values() for pid in descendants(one.process.pid)]:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            found += [w.decode() for w, before in zip(words[1:], words, strict=False) if before == b"--token"]
    return found


def killed(federation, name):
    """Kill a verb as the kernel would; all that it started is gone in time."""
    started = federation.started[name]
    below = descendants(started.process.pid)
    assert len(below) >= 2
    began = time.monotonic()
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    wait_for(lambda: all(map(gone, below)), f"left behind by {name}", WITHIN)
    assert time.monotonic() - began < WITHIN


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A federation of two sites whose run is under way and far from its end."""
    config = experiment("fedavg", rounds=500, clients=2, per_round=2, subset=80, labels__per_class=4)
    made = deployment(tmp_path_factory.mktemp("breakin") / "federation", config, quorum=1, deadline=180.0)
    with loopback(made) as programs:
        programs.server()
        programs.sites()
        programs.run()
        plays_on(programs)
        yield programs


def plays_on(federation, rounds=1):
    at = federation.checkpoint()
    wait_for(lambda: federation.checkpoint() >= at + rounds, "the run goes on")


@as_root
def test_other_accounts_are_heard_at_no_port_and_disturb_nothing(federation):
    made = federation.made

    # All that listens is on the loopback device; the gate would be wherever the address says.
    ports = {name: listening(started) for name, started in federation.started.items()}
    assert {host for found in ports.values() for host, _ in found} == {"0100007F"}
    inner = {port for _, port in ports["server"]} - {made.bind[1]}
    assert len(inner) == 1
    doors = dict.fromkeys(inner, made.ca_certificate)
    for name in made.sites:
        doors |= dict.fromkeys((port for _, port in ports[name]), made.site(name).state / "local-ca.crt")
    assert len(doors) == 1 + 2 * len(made.sites)

    token = wait_for(lambda: stolen_secret(federation), "a task")
    for port, authority in doors.items():
        fared = attack(port, str(authority), STOLEN_TOKEN=token)
        assert fared == {"owner": {"answered"}, "other": {"refused"}}
    assert secrets_on_command_lines(federation) == []
    at = federation.checkpoint()
    for client in range(len(made.sites)):
        federation.wait_event(
            lambda line, client=client: (
                line["event"] == "answered" and line["round"] > at + 1 and line["client"] == client
            )
        )
    told = [line["text"] for line in LiveReader(made.state / LIVE_FILE).new() if line["event"] == "failed"]
    assert not [text for text in told if "left out" in text], "what was sent is what the sites computed"


def test_foreign_apps_run_nowhere(federation, tmp_path):
    """Neither what an enrolled site submits, nor at sites what the server itself submits."""
    made, marks = federation.made, tmp_path / "marks"
    submitted_by(made, "site-01", tmp_path / "site", made.address)
    log = (made.state / "gate.log").read_text()
    assert re.search(r" site-01 127\.0\.0\.1 'POST /v1/control/\S+' 403 ", log), "who tried is written down"

    marks.mkdir()
    app = foreign_app(tmp_path / "foreign", marks)
    run = federation.started["run"]
    run.process.send_signal(signal.SIGINT)
    run.process.wait(PATIENCE)
    ask_flwr(["run", str(app), operate.LINK], operate.flower_home(made))
    wait_for(lambda: (marks / "told").is_file(), "the foreign app's end")
    told = (marks / "told").read_text().splitlines()
    assert told[0] == "2 nodes"
    assert len(told) == 3
    assert all("could not be verified" in line for line in told[1:])
    assert not list(marks.glob("client-*"))
    assert list(marks.glob("server-*"))
    federation.run()
    plays_on(federation)  # the sites are none the worse for it


def test_a_killed_site_answers_no_more_rounds_and_comes_back(federation):
    made, log = federation.made, federation.made.state / "gate.log"
    killed(federation, "site-02")
    answered = [line for line in log.read_text().splitlines() if " site-02 " in line]
    plays_on(federation, 2)
    assert [line for line in log.read_text().splitlines() if " site-02 " in line] == answered

    # What it may have to wait for is its own earlier session.
    again, at = federation.site(1), federation.checkpoint()
    federation.wait_event(
        lambda line: line["event"] == "answered" and line["round"] > at and line["client"] == 1
    )
    assert f"{made.sites[1]} is connected" in again.text()
    assert "does not know the key" not in again.text()
    waits = [line for line in again.text().splitlines() if "site-02 waits: " in line]
    assert all("an earlier session of site-02" in line for line in waits)


def test_nothing_outlives_a_killed_server(federation):
    killed(federation, "server")
