"""The life of a real federation: processes that die, a disk that is full, runs that are stopped."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PATIENCE, deployment, descendants, experiment, loopback, named, wait_for

from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, gone, play, same_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]


def small(rounds=3, **settings):
    return experiment(
        "fedavg", rounds=rounds, clients=2, per_round=2, subset=80, labels__per_class=4, **settings
    )


def played(config, folder):
    """The weights that the simulation ends with."""
    told = Told()
    play(config, prepare(config), folder, observers=[told])
    return told.reports[-1].state


def assert_same_end(made, config, folder):
    assert Run(made.run).finished
    assert same_state(
        checkpoint.load_newest(RunDirectory(made.run))[0].state, played(config, folder / "inline")
    )


KILLED = (
    ("server", "flower-superexec", "flower-superexec ended by itself"),
    ("server", "flwr-serverapp", "the run's process ended without a message"),
    ("server", "gate", "the gate ended by itself"),
    ("server", "flower-superlink", "the SuperLink ended by itself"),
    ("site-01", "flower-supernode", "starting again"),
    ("site-01", "flower-superexec", "flower-superexec ended by itself"),
    ("site-01", "flwr-clientapp", ""),
    ("site-01", "", ""),
    ("server", "", ""),
)
"""Below which command, which program (or the command itself), and what that command says of it."""


def test_every_single_process_may_be_killed(tmp_path):
    """One a round. The run goes on by itself, or says how to continue it, and ends in the same bits."""
    config = small(rounds=len(KILLED) + 1)
    made = deployment(tmp_path / "federation", config, quorum=2, deadline=120.0)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        run = federation.run()
        for round, (verb, program, told) in enumerate(KILLED, start=1):
            federation.wait_event(lambda line, n=round: line["event"] == "round" and line["round"] == n)
            started = federation.started[verb]
            os.kill(named(started, program) if program else started.process.pid, signal.SIGKILL)
            if told:
                federation.wait_text(started, told)
            elif not program and verb != "server":
                federation.site(0)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 2
        assert "the server is gone" in run.text()
        federation.server()
        federation.finish(federation.run())
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), name
    assert_same_end(made, config, tmp_path)


FEW = """
from proxyfl.deploy import supervise
supervise.RESTARTS = 1
"""
"""A server that is started again once and then gives up, so that it need not be killed seven times."""


def test_a_server_that_does_not_stay_up_gives_up_with_a_sentence_and_an_exit_code(tmp_path):
    """So that systemd starts it anew."""
    made = deployment(tmp_path / "federation", small())
    plugin = tmp_path / "few.py"
    plugin.write_text(FEW)
    with loopback(made) as federation:
        server = federation.start("server", "--plugin", plugin, "deploy", "server", made.path)
        federation.wait_text(server, "ready at")
        first = named(server, "flower-superlink")
        os.kill(first, signal.SIGKILL)
        again = wait_for(
            lambda: pid if (pid := named(server, "flower-superlink")) != first else 0, "a new one"
        )
        wait_for(lambda: server.text().count("ready at") == 2, "it is up again")
        os.kill(again, signal.SIGKILL)
        assert server.process.wait(PATIENCE) == 2
        assert "the server was started again 1 times" in server.text()
        assert "Traceback" not in server.text()


RESTORED = ("federation.toml", "ca/ca.crt", "server", "app", "run")
"""What the page tells to restore, beside the sites' public keys; ``state`` where there is a copy of it."""


def lose_disk(made, lost, kept):
    """All that the server had is gone, and what the page tells is brought back from a copy."""
    made.path.rename(lost)
    for place in (*RESTORED, *kept, "test.npz", *(f"{name}/site.pub" for name in made.sites)):
        (made.path / place).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (lost / place).is_dir() else shutil.copy
        copy(lost / place, made.path / place)


def test_stopped_killed_and_restored_the_server_goes_on_and_sites_connect_again(tmp_path):
    """By a signal, then twice by a power cut that takes the disk along. The sites are never touched."""
    config = small(rounds=5)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.move_sites(tmp_path / "outside")
        server = federation.server()
        federation.sites()
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] == 2)
        family = descendants(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        wait_for(lambda: all(map(gone, family)), "a process outlived the server", 10)
        assert not RunDirectory(made.state).is_locked()
        run.process.wait(PATIENCE)
        assert "the server is gone" in run.text()

        for kept in ((), ("state",)):
            federation.server()
            run, at = federation.run(), federation.checkpoint()
            federation.wait_event(lambda line, at=at: line["event"] == "round" and line["round"] > at + 1)
            federation.started["server"].kill()
            run.process.wait(PATIENCE)
            lose_disk(made, tmp_path / f"lost {len(kept)}", kept)
        federation.server()
        federation.finish(federation.run())
        for name in made.sites:
            site = federation.started[name]
            assert site.process.poll() is None, "a site waits"
            assert "gracefully" not in site.text()
            assert "Traceback" not in site.text()
    assert_same_end(made, config, tmp_path)


def test_a_run_is_stopped_after_its_round_followed_and_ended_by_a_signal(tmp_path):
    config = small(rounds=10)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        server = federation.server()
        federation.sites()
        federation.finish(federation.run("--detach"))
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] == 1)

        attached = federation.start("attach", "deploy", "attach", made.path)
        federation.wait_text(attached, " of 10")
        attached.process.send_signal(signal.SIGINT)
        federation.finish(attached)
        assert "the run continues" in attached.text()

        stop = federation.start("stop", "deploy", "stop", made.path)
        assert "continue with: proxyfl deploy run" in federation.finish(stop)
        done = federation.checkpoint()
        assert 1 <= done < 7
        wait_for(lambda: not RunDirectory(made.state).is_locked(), "the lock")
        federation.wait_text(server, f"round {done}: accuracy")
        assert f"round {done}: accuracy" in (made.state / "server.log").read_text()
        assert "round 1: training" in federation.started["site-01"].text()

        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] == done + 2)
        run.process.send_signal(signal.SIGTERM)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 130
        assert "stopped; continue with" in run.text()
        assert not RunDirectory(made.state).is_locked()
        time.sleep(15)
        assert not RunDirectory(made.state).is_locked(), "what was stopped stays so"
        federation.finish(federation.run())
    assert_same_end(made, config, tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_full_disk_is_waited_for_and_the_federation_goes_on(tmp_path, small_disk):
    config = small(rounds=4)
    made = deployment(small_disk / "federation", config)
    with loopback(made) as federation:
        federation.move_sites(tmp_path / "outside")
        server = federation.server()
        federation.sites()
        federation.run()
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] == 2)
        fill = small_disk / "fill"
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        federation.wait_text(server, "\n0 MB are left on the disk")
        before = listing(made.path)
        status = federation.start("status", "deploy", "status", made.path)
        assert "server" in federation.finish(status)
        assert listing(made.path) == before, "status only reads"
        again = federation.start("again", "deploy", "run", made.path)
        again.process.wait(PATIENCE)
        assert again.process.returncode == 2
        fill.unlink()
        wait_for(lambda: Run(made.run).finished, "the run goes on by itself")
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), (name, one.text())
        federation.finish(federation.start("status", "deploy", "status", made.path))
    assert_same_end(made, config, tmp_path)


def listing(folder: Path):
    return sorted(
        (str(path), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("superlink", "gate", "server.log"))
    )
