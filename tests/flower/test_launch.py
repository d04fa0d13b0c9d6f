"""Flower's programs as they are started here: for their own user alone, gone with who started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import descendants, free_port, wait_for

from proxyfl.core.errors import RunError
from proxyfl.deploy import entrance, launch, operate, peers, supervise
from proxyfl.deploy.programs import Program, environment
from toybox import gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="becomes another user")
NOBODY = 65534
WITHIN = 5.0
"""Seconds in which everything must be gone."""

HOLDER = """
import sys, time
from pathlib import Path
from proxyfl.deploy.programs import Program, environment
home, port = Path(sys.argv[1]), sys.argv[2]
words = ["flower-supernode", "--insecure", "--superlink", "127.0.0.1:1", "--host", "127.0.0.1"]
words += ["--port", port]
program = Program(words, environment(home, {}), home / "a.log")
print(program.process.pid, flush=True)
time.sleep(600)
"""


def attack(port: int, authority: str = "", **env: str) -> dict[str, set[str]]:
    """How the owner of a port and another account fared with all attempts."""
    script = Path(__file__).with_name("stranger.py")
    words = [sys.executable, str(script), str(NOBODY), str(port), *([authority] if authority else [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    print(port, authority, done.stdout, sep="\n")  # shown where a test fails
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("owner", "other"))]
    assert len(lines) == 5, done.stdout
    return {who: {line[2] for line in lines if line[0] == who} for who in ("owner", "other")}


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A SuperNode without a server, started by a process that can be killed."""
    home, port = tmp_path_factory.mktemp("node"), free_port()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(home), str(port)], stdout=subprocess.PIPE)
    try:
        wait_for(lambda: entrance.listens(port), "its port")
        yield holder, port
    finally:
        holder.kill()
        holder.wait()


@as_root
def test_another_account_is_not_heard_at_a_sites_port(node):
    _, port = node
    assert attack(port) == {"owner": {"answered"}, "other": {"refused"}}


def test_everything_ends_with_who_started_it(node):
    holder, port = node
    below = wait_for(
        lambda: found if len(found := descendants(holder.pid)) >= 2 else None, "SuperNode and SuperExec"
    )
    began = time.monotonic()
    os.kill(holder.pid, signal.SIGKILL)
    wait_for(lambda: all(map(gone, below)), "a program was left behind", WITHIN)
    assert time.monotonic() - began < WITHIN
    wait_for(lambda: not entrance.listens(port), "the port is still open", WITHIN)


def test_a_leash_with_words_unread_holds_as_well():
    """Such an end is a reset, and of all who hold the other end one alone is told so."""
    ours, theirs = socket.socketpair()
    code = "import socket, sys, time; from proxyfl.deploy.launch import hold; "
    code += "hold(socket.socket(fileno=int(sys.argv[1]))); print(1, flush=True); time.sleep(600)"
    words = [sys.executable, "-c", code, str(theirs.fileno())]
    options = {"stdout": subprocess.PIPE, "pass_fds": [theirs.fileno()], "start_new_session": True}
    with subprocess.Popen(words, **options) as held:
        assert held.stdout.readline() == b"1\n"
        theirs.send(b"unread\n")
        theirs.close()
        ours.close()
        try:
            assert held.wait(WITHIN) == -signal.SIGKILL
        finally:
            held.kill()


def test_a_port_without_the_guard_is_found(tmp_path, monkeypatch):
    port = free_port()
    words = ["any", "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    monkeypatch.setattr(launch, "command", lambda words: [sys.executable, *words[1:]])
    with Program(words, environment(tmp_path, {}), tmp_path / "a.log") as program:
        wait_for(lambda: entrance.listens(port), "its port")
        assert not program.guards(port, 0.3)
        monkeypatch.setattr(program, "guards", lambda port: False)
        with pytest.raises(RunError, match="Flower's local port"):
            operate._require_guard(program, port)


def test_a_tasks_secret_is_on_no_command_line(monkeypatch):
    started = {}
    monkeypatch.setattr(
        subprocess.Popen, "__init__", lambda self, args, **options: started.update(options, args=args)
    )
    monkeypatch.setenv(launch.LEASH, "7")
    launch.Leashed(["flwr-clientapp", "--token", "secret", "--insecure"])
    assert started["args"] == launch.command(["flwr-clientapp", "--insecure"])
    assert started["env"][launch.TOKEN] == "secret"
    assert started["pass_fds"] == (7,)
    launch.Leashed(["ls", "--token", "x"])
    assert started["args"] == ["ls", "--token", "x"]


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_ones_own_connections_are_told_from_others(monkeypatch, family, host):
    with peers.OwnSocket(family) as listening:
        listening.bind((host, 0))
        listening.listen()
        place = listening.getsockname()[:2]
        with socket.create_connection(place) as mine:
            assert listening.accept()[1][1] == mine.getsockname()[1]
        with socket.create_connection(place) as closed:
            closed.shutdown(socket.SHUT_WR)  # what is closing has no owner
            with pytest.raises(ConnectionAbortedError):
                listening.accept()
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with socket.create_connection(place) as mine:
            with pytest.raises(ConnectionAbortedError):
                listening.accept()
            with pytest.raises(ConnectionResetError):
                mine.recv(1)


def test_a_machine_that_cannot_tell_users_apart_is_refused(monkeypatch, tmp_path):
    peers.require()
    monkeypatch.setattr(os, "geteuid", lambda: int(peers.OVERFLOW.read_text()))
    with pytest.raises(RunError, match="an account of its own"):
        peers.require()
    monkeypatch.setitem(peers.TABLES, socket.AF_INET, tmp_path / "nothing")
    with pytest.raises(RunError, match="servers and sites need Linux"):
        peers.require()


@pytest.mark.parametrize(("name", "said"), [("flwr-clientapp", False), ("flower-supernode", True)])
def test_a_tasks_dead_thread_is_not_taken_for_the_supernodes(name, said):
    """As when a busy machine is late with a task's sign of life: that task is lost, and nothing else."""
    code = "import sys, threading, types; from proxyfl.deploy import launch; "
    code += "part = lambda: threading.Thread(target=lambda: 1 / 0).start(); "
    code += "launch.programs = lambda: {sys.argv[1]: types.SimpleNamespace(load=lambda: part)}; launch.main()"
    ours, theirs = socket.socketpair()
    env = {**os.environ, launch.LEASH: str(theirs.fileno())}
    words, options = [sys.executable, "-c", code, name], {"pass_fds": [theirs.fileno()], "env": env}
    with ours, theirs:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **options)
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert (supervise.THREAD in done.stderr) is said
