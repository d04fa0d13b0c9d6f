"""The operator's verbs where something is missing or wrong: one line that names the cure."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment, free_port, wait_for

import proxyfl.cli.deploy
from calling import invoke
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import operate, programs
from proxyfl.deploy.live import LiveLog, LiveReader
from proxyfl.deploy.programs import FlowerError, Program, ask_flwr, environment
from toybox import gone


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = experiment("fedavg", rounds=1, clients=2, per_round=2, subset=80, labels__per_class=4)
    return deployment(tmp_path_factory.mktemp("deploy") / "f", config)


def test_a_run_without_a_server_says_how_to_start_one(made):
    result = invoke("deploy", "run", made.path)
    assert result.exit_code == 2
    assert f"start it with 'proxyfl deploy server {made.path}'" in result.stderr


def test_status_before_anything_runs(made):
    result = invoke("deploy", "status", made.path)
    assert result.exit_code == 0, result.stderr
    assert "server down" in result.stdout
    assert "site-01" in result.stdout
    assert "has not begun" in result.stdout


def test_a_site_without_its_images_says_what_data_is(made):
    result = invoke("deploy", "site", made.path / "site-01", "--data", made.path / "nowhere")
    assert result.exit_code == 2
    assert "--data is the folder or file with this site's images" in result.stderr


def test_without_flower_the_extra_is_named(made, monkeypatch):
    monkeypatch.setattr(proxyfl.cli.deploy, "find_spec", lambda name: None)
    for words in (("server", made.path), ("run", made.path), ("status", made.path)):
        result = invoke("deploy", *words)
        assert result.exit_code == 2
        assert "pip install 'proxyfl[flower]'" in result.stderr


def test_missing_keys_are_named(made, tmp_path):
    site = dataclasses.replace(made.site("site-01"), path=tmp_path)
    with (
        pytest.raises(ConfigError, match=r"ca\.crt is missing; ask the federation's operator"),
        operate.site(site, made.path / "data-0.npz", print),
    ):
        pass
    other = dataclasses.replace(made, path=tmp_path)
    with pytest.raises(ConfigError, match=r"ca\.crt is missing"), operate.server(other, print):
        pass


def test_flowers_programs_send_nothing_and_install_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    env = environment(tmp_path / "home", {"MORE": "1"})
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "home")
    assert env["MORE"] == "1"


CHILD = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"proxyfl: child {child.pid}", flush=True)
print("\\x1b[91mERROR\\x1b[0m: no luck", flush=True)
%s
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("stubborn", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_a_program_ends_with_all_that_it_started(tmp_path, monkeypatch, stubborn):
    monkeypatch.setattr(programs, "find_program", lambda name: sys.executable)
    monkeypatch.setattr(programs, "PATIENCE", 0.5)
    heard = []
    with Program(["any", "-c", CHILD % stubborn], os.environ, tmp_path / "a.log", heard.append) as program:
        wait_for(lambda: heard and "no luck" in program.log.read_text(), "its words")
        child = int(heard[0].removeprefix("child "))
        assert not gone(child)
    assert program.ended is not None
    wait_for(lambda: gone(child), "the child's end")
    assert program.trouble() == "ERROR: no luck"


def test_what_a_flwr_command_says_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "find_program", lambda name: sys.executable)
    good = "print('note'); import json; print(json.dumps({'success': True, 'run-id': '7'}, indent=1))"
    assert ask_flwr(["-c", good], os.environ)["run-id"] == "7"
    bad = "import json; print(json.dumps({'success': False, 'error-message': 'Public key already in use'}))"
    with pytest.raises(FlowerError, match="Public key already in use"):
        ask_flwr(["-c", bad], os.environ)
    with pytest.raises(RunError, match="gave no answer within"):
        ask_flwr(["-c", "import time; time.sleep(60)"], os.environ, seconds=0.5)


def test_a_port_that_is_taken_is_named(made):
    import socket

    taken = dataclasses.replace(made, address=f"127.0.0.1:{free_port()}", insecure=True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(taken.address.rpartition(":")[2])))
        other.listen()
        with pytest.raises(RunError, match="something answers at port"), operate.server(taken, print):
            pass


def test_following_a_run_ends_with_its_last_word_or_when_the_server_is_gone(made, monkeypatch, tmp_path):
    here = dataclasses.replace(made, path=tmp_path)
    log = LiveLog(here.state / "live.jsonl", here.sites)
    log.tell("note", text="hello")
    log.tell("finished", round=1, text="done")
    assert [line["event"] for line in operate.follow(here, "1")] == ["note", "finished"]
    log.file.unlink()
    monkeypatch.setattr(operate, "QUIET", 0.1)
    (last,) = operate.follow(here, "1", every=0.01)
    assert last["event"] == "stopped"
    assert "the server is gone; start it again with 'proxyfl deploy server" in last["reason"]


def test_following_finds_a_run_that_died_without_a_word(made, monkeypatch, tmp_path):
    here = dataclasses.replace(made, path=tmp_path)
    monkeypatch.setattr(operate, "QUIET", 0.1)
    monkeypatch.setattr(operate, "answers", lambda *words: True)
    monkeypatch.setattr(operate, "ask_flwr", lambda *words: {"runs": [{"status": "finished:failed"}]})
    (last,) = operate.follow(here, "1", every=0.01)
    assert "Flower says 'finished:failed'" in last["reason"]


def test_the_live_file_is_read_line_by_line_and_from_the_start_when_it_is_new(tmp_path):
    file = tmp_path / "live.jsonl"
    reader = LiveReader(file)
    assert reader.new() == []
    file.write_text('{"event": "a"}\n{"event": ')
    assert reader.new() == [{"event": "a"}]
    with file.open("a") as more:
        more.write('"b"}\n')
    assert reader.new() == [{"event": "b"}]
    file.write_text(json.dumps({"event": "c"}) + "\n")
    assert reader.new() == [{"event": "c"}]


def test_a_closed_terminal_ends_a_verb_like_ctrl_c():
    usual = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        proxyfl.cli.deploy._end_on_signals()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for name, handler in usual.items():
            signal.signal(name, handler)
