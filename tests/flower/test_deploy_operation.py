"""The operator's verbs where something is missing or wrong: one line that names the cure."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment, free_port, wait_for

import proxyfl.cli.deploy
from calling import invoke
from proxyfl.core.errors import ConfigError, DataError, ProxyFLError, RunError
from proxyfl.core.state import Failure
from proxyfl.deploy import entrance, launch, operate, pki, programs, rotation, status, stopping, supervise
from proxyfl.deploy.live import LiveLog, LiveReader, round_line
from proxyfl.deploy.post import Post, private
from proxyfl.deploy.programs import FlowerError, Program, ask_flwr, environment
from proxyfl.deploy.site_data import write_npz
from proxyfl.runs.directory import RunDirectory
from toybox import gone


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = experiment("fedavg", rounds=1, clients=2, per_round=2, subset=80, labels__per_class=4)
    return deployment(tmp_path_factory.mktemp("deploy") / "f", config)


def test_a_run_without_a_server_says_how_to_start_one(made):
    result = invoke("deploy", "run", made.path)
    assert result.exit_code == 2
    assert f"start it with 'proxyfl deploy server {made.path}'" in result.stderr


def test_a_run_waits_for_a_server_that_is_starting(made, tmp_path, monkeypatch):
    starting, said = dataclasses.replace(made, path=tmp_path), []
    monkeypatch.setattr(entrance, "check_server_files", lambda deployment: None)
    looks = iter([False, False, True, True])
    monkeypatch.setattr(operate, "answers", lambda deployment: next(looks))
    with operate.supervisor(starting).taken():
        operate.require_server(starting, said.append)
        assert said == [f"waiting for the server of {tmp_path}, which is starting"]
        monkeypatch.setattr(operate, "answers", lambda deployment: False)
        monkeypatch.setattr(operate, "START", 0.0)
        with pytest.raises(RunError, match=r"does not answer at .*server\.log"):
            operate.require_server(starting, said.append)
    with pytest.raises(RunError, match="server is not running"):
        operate.require_server(starting, said.append)
    assert len(said) == 2


def test_a_server_or_a_site_that_runs_is_not_started_again(made, tmp_path, monkeypatch):
    monkeypatch.setattr(operate, "look", lambda *words: pytest.fail("it looks"))
    server = dataclasses.replace(made, path=tmp_path / "federation")
    site = dataclasses.replace(made.site("site-01"), path=tmp_path / "site")
    for folder in (server.path, site.path):
        folder.mkdir()
    with operate.supervisor(server).taken(), Post(site.state, site.name).taken():
        before = sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*"))
        by = f"is running already, as process {os.getpid()}; wait for it or stop it"
        with pytest.raises(RunError, match=f"the server of {server.path} {by}"):
            supervise.serve(server, print, lambda: pytest.fail("it serves"))
        with pytest.raises(RunError, match=f"site-01 {by}"):
            supervise.take_part(site, made.path / "data-0.npz", print)
        assert before == sorted((file, file.stat().st_mtime_ns) for file in tmp_path.rglob("*"))
    with Post(site.state, site.name).taken():
        pass


def test_status_before_anything_runs(made):
    result = invoke("deploy", "status", made.path)
    assert result.exit_code == 0, result.stderr
    assert "server down" in result.stdout
    assert "site-01" in result.stdout
    assert "has not begun" in result.stdout


def test_a_site_without_its_images_says_what_data_is(made):
    result = invoke("deploy", "site", made.path / "site-01", "--data", made.path / "nowhere")
    assert result.exit_code == 2
    assert "--data is the folder or file" in result.stderr


def test_without_flower_the_extra_is_named(made, monkeypatch):
    monkeypatch.setattr(proxyfl.cli.deploy_life, "find_spec", lambda name: None)
    new, data = made.path / "new", made.path / "data-0.npz"
    for words in (
        *((verb, made.path) for verb in ("server", "run", "status", "stop")),
        ("init", new),
        ("init", made.path, "--renew"),
        ("check", data, "--site", made.path / "site-01"),
        ("check", data, "--server", made.path),
    ):
        result = invoke("deploy", *words)
        assert result.exit_code == 2, words
        assert "pip install 'proxyfl[flower]'" in result.stderr
    assert not new.exists()


def test_missing_keys_are_named(made, tmp_path):
    site = dataclasses.replace(made.site("site-01"), path=tmp_path)
    with (
        pytest.raises(ConfigError, match=r"ca\.crt is missing; .*operator"),
        operate.site(site, made.path / "data-0.npz", print),
    ):
        pass
    other = dataclasses.replace(made, path=tmp_path)
    with pytest.raises(ConfigError, match=r"ca\.crt is missing"), operate.server(other, print):
        pass


def test_a_lost_authority_is_brought_back_from_a_sites_folder(made):
    """The keys that only changes need may be elsewhere."""
    authority = made.ca_certificate
    kept = authority.rename(authority.with_suffix(".kept"))
    try:
        with pytest.raises(ConfigError) as told:
            entrance.check_server_files(made)
        copy = str(told.value).partition("has a copy, as ")[2].partition(":")[0]
        assert copy == str(made.site("site-01").ca_certificate)
        shutil.copy(copy, authority)
        made.ca_key.rename(made.ca_key.with_suffix(".away"))
        made.operator_key.rename(made.operator_key.with_suffix(".away"))
        entrance.check_server_files(made)
    finally:
        kept.rename(authority)
        for key in (made.ca_key, made.operator_key):
            key.with_suffix(".away").rename(key)


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
    monkeypatch.setattr(launch, "command", lambda words: [sys.executable, *words[1:]])
    monkeypatch.setattr(programs, "PATIENCE", 0.5)
    heard = []
    with Program(["any", "-c", CHILD % stubborn], os.environ, tmp_path / "a.log", heard.append) as program:
        wait_for(lambda: heard and "no luck" in program.log.read_text(), "its words")
        child = int(heard[0].removeprefix("child "))
        assert not gone(child)
    assert program.ended is not None
    wait_for(lambda: gone(child), "the child's end")
    assert program.failure() == "ERROR: no luck"


def test_trouble_is_that_of_this_start_and_a_closed_terminal_does_not_stop_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "command", lambda words: [sys.executable, *words[1:]])

    def closed(line):
        raise BrokenPipeError

    for words, expected in (
        ("ERROR earlier", "ERROR earlier"),
        ("all is well", "proxyfl: hello all is well"),
    ):
        code = f"print('proxyfl: hello'); print('{words}')"
        with Program(["any", "-c", code], os.environ, tmp_path / "a.log", closed) as program:
            assert program.wait(60) == 0
            assert program.failure() == expected
    assert "all is well" in program.log.read_text()


def test_a_program_is_found_beside_this_one_or_on_the_path(tmp_path, monkeypatch):
    place = tmp_path / "bin" / "flower-elsewhere"
    place.parent.mkdir()
    place.write_text("#!/bin/sh\n")
    place.chmod(0o755)
    with pytest.raises(ProxyFLError, match=r"pip install 'proxyfl\[flower\]'"):
        programs.find_program(place.name)
    monkeypatch.setenv("PATH", str(place.parent), prepend=os.pathsep)
    assert programs.find_program(place.name) == str(place)


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

    port = free_port()
    taken = dataclasses.replace(made, address=f"127.0.0.1:{port}", insecure=True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(RunError, match=rf"port {port}.*--port"), operate.server(taken, print):
            pass


def test_following_a_run_ends_with_its_last_word_or_when_the_server_is_gone(made, monkeypatch, tmp_path):
    here = dataclasses.replace(made, path=tmp_path)
    log = LiveLog(here.state / "live.jsonl", here.sites, "0")
    log.tell("finished", text="an earlier run")
    log.run = "1"
    log.tell("note", text="hello")
    log.tell("finished", round=1, text="done")
    assert [line["event"] for line in operate.follow(here, "1")] == ["note", "finished"]
    log.file.unlink()
    monkeypatch.setattr(operate, "QUIET", 0.1)
    (last,) = operate.follow(here, "1", every=0.01)
    assert last["event"] == "stopped"
    assert "the server is gone" in last["reason"]


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
        proxyfl.cli.deploy.end_on_signals("SIGTERM", "SIGHUP")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for name, handler in usual.items():
            signal.signal(name, handler)


def test_a_site_looks_at_its_images_before_it_connects(made, tmp_path, monkeypatch):
    site, said = dataclasses.replace(made.site("site-01"), path=tmp_path / "site"), []
    site.path.mkdir()
    pki.create_site_keys(site.private_key, site.public_key, site.name)
    operate.look(site, made.path / "data-0.npz", said.append)
    assert said[0].startswith("site-01 has ")
    assert "0 held out" in said[0]
    assert stat.S_IMODE(site.state.stat().st_mode) == 0o700
    site.private_key.chmod(0o644)
    operate.look(site, made.path / "data-0.npz", said.append)
    assert any(f"chmod 600 {site.private_key}" in line for line in said)
    write_npz(tmp_path / "wrong.npz", *_two_images(made), tuple("abcdefghij"))
    monkeypatch.setattr(operate, "site", lambda *words: pytest.fail("it connects"))
    with pytest.raises(DataError, match="classes"):
        supervise.take_part(site, tmp_path / "wrong.npz", said.append)


def test_what_server_and_sites_keep_is_for_their_owner_whatever_the_umask(made, tmp_path):
    server = dataclasses.replace(made, path=tmp_path / "federation")
    site = dataclasses.replace(made.site("site-01"), path=tmp_path / "site", insecure=True)
    first = tmp_path / "first"
    for folder in (server.path, site.path, first):
        folder.mkdir()
    before = os.umask(0)
    try:
        with operate.supervisor(server).taken():
            supervise.Journal(server.state / "server.log", lambda line: None)("hello")
        operate.flower_home(server)
        with Post(site.state, site.name).taken():
            operate.look(site, made.path / "data-0.npz", lambda line: None)
            write_npz(site.state / "cache.npz", *_two_images(made), tuple("0123456789"))
        entrance.choose_port(dataclasses.replace(server, path=first))
    finally:
        os.umask(before)
    for state in (server.state, server.state / "supervisor", site.state, first / "state"):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for file in (
        server.state / "server.log",
        server.state / "supervisor" / ".lock",
        site.state / "cache.npz",
    ):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_status_forgets_a_run_that_was_moved_away(made, tmp_path):
    moved = dataclasses.replace(made, path=tmp_path)
    private(moved.state)
    LiveLog(moved.state / "live.jsonl", moved.sites, "7").tell("finished", text="finished after 4 rounds")
    begin = f"the run has not begun; start it with: proxyfl deploy run {tmp_path}"
    assert status.run_line(moved) == begin
    with RunDirectory(moved.state).locked():
        assert status.run_line(moved) == "the run is being prepared"
        log = LiveLog(moved.state / "live.jsonl", moved.sites, "8")
        log.tell("began")
        log.tell("waiting", text="waiting for site-01")
        assert status.run_line(moved) == "the run is being prepared; waiting for site-01"
    moved.run.mkdir()
    assert "cannot be read" in status.run_line(moved)
    assert "finished after 4 rounds" not in status.run_line(moved)


def test_status_names_the_round_that_is_being_trained(made, tmp_path, monkeypatch):
    moved = dataclasses.replace(made, path=tmp_path)
    metrics = []
    played = SimpleNamespace(metrics=metrics, config=made.config, finished=False)
    monkeypatch.setattr(status, "Run", lambda path: played)
    private(moved.state)
    moved.run.mkdir()
    log = LiveLog(moved.state / "live.jsonl", moved.sites, "7")
    with RunDirectory(moved.state).locked():
        log.round_started(1, [0, 1])
        assert status.run_line(moved) == "run running: round 1 of 1 is being trained"
        metrics.append({"round": 1, "accuracy": 0.5})
        assert status.run_line(moved) == "run running: round 1 of 1, accuracy 50.0%"
        log.round_started(2, [0, 1])
        going = "run running: round 2 of 1 is being trained; so far: round 1 of 1, accuracy 50.0%"
        assert status.run_line(moved) == going
    assert status.run_line(moved) == "run stopped: round 1 of 1, accuracy 50.0%"


@pytest.mark.parametrize(
    ("event", "text", "line"),
    [
        (
            "finished round",
            "round 1: accuracy 50.0%, answered: site-01; 9.0 s",
            "run stopped: round 1 of 1: accuracy 50.0%, answered: site-01; 9.0 s",
        ),
        (
            "stopped",
            "stopped after round 1, as requested; the checkpoint is kept",
            "run stopped: round 1 of 1, accuracy 50.0% (as requested; the checkpoint is kept)",
        ),
        ("stopped", "stopped: no space", "run stopped: round 1 of 1, accuracy 50.0% (no space)"),
        ("note", "site-02 is new", "run stopped: round 1 of 1, accuracy 50.0%; site-02 is new"),
    ],
)
def test_status_says_nothing_twice(made, tmp_path, monkeypatch, event, text, line):
    moved = dataclasses.replace(made, path=tmp_path)
    metrics = [{"round": 1, "accuracy": 0.5}]
    played = SimpleNamespace(metrics=metrics, config=made.config, finished=False)
    monkeypatch.setattr(status, "Run", lambda path: played)
    private(moved.state)
    moved.run.mkdir()
    LiveLog(moved.state / "live.jsonl", moved.sites, "7").tell(event, text=text)
    assert status.run_line(moved) == line


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


def test_stopping_now_ends_the_process_that_plays_the_run(made, tmp_path, monkeypatch):
    """Flower alone would tell it with its next sign of life, half a minute later."""
    moved = dataclasses.replace(made, path=tmp_path)
    private(moved.state)
    line = [sys.executable, "-c", HOLDER, moved.state / ".lock"]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as player:
        assert player.stdout is not None
        player.stdout.readline()
        LiveLog(moved.state / "live.jsonl", moved.sites, "7").tell("began", pid=player.pid)
        asked = []
        monkeypatch.setattr(operate, "under_way", lambda deployment: "7")
        monkeypatch.setattr(stopping, "ask_flwr", lambda words, env: asked.append(words))
        assert stopping.stop_now(moved) is True
        assert player.wait(5) == -signal.SIGTERM
    assert asked == [["stop", "7", operate.LINK]]
    assert LiveReader(moved.state / "live.jsonl").new()[-1]["text"] == "stopped, as requested"


def test_who_was_away_was_not_refused_and_is_not_told_of_an_answer(tmp_path):
    log = LiveLog(tmp_path / "live.jsonl", ("site-01", "site-02", "site-03"), "7")
    reasons = (
        "was stopped or lost its connection",
        "did not answer within 9 s",
        ": refused: claims 60 images",
    )
    names = [f"site-0{client + 1}" for client in range(3)]
    failed = {str(k): f"{names[k]} {reason}".replace(" :", ":") for k, reason in enumerate(reasons)}
    for client, reason in failed.items():
        log.answered(Failure(2, int(client), reason))
    said = [line["text"] for line in LiveReader(log.file).new()]
    assert said[0].startswith("round 2: site-01 was stopped or lost its connection")
    assert said[2] == "round 2: site-03 left out: refused: claims 60 images"
    assert log.left_out == {
        1: "round 2: it had not arrived by the deadline",
        2: "round 2: refused: claims 60 images",
    }
    line = round_line({"round": 2, "failed": failed, "clients": []}, {"train": 1.0}, log.sites)
    assert line == "round 2: answered: nobody; late: site-02; offline: site-01; refused: site-03; 1.0 s"


def _two_images(made):
    import torch

    shape = (2, made.channels, made.image_size, made.image_size)
    return torch.zeros(shape, dtype=torch.uint8), torch.tensor([0, 1])


@pytest.fixture
def asked(made, tmp_path, monkeypatch):
    """A deployment of its own, and every question to Flower's commands with a ready answer."""
    here, words = dataclasses.replace(made, path=tmp_path), []
    for name in here.sites:
        site = here.site(name)
        site.path.mkdir()
        pki.create_site_keys(site.private_key, site.public_key, name)
    here.ca_certificate.parent.mkdir()
    pki.create_authority(here.ca_certificate, here.ca_key, "test")
    here.write()

    def answer(question, env):
        words.append([*question[:2], str(len(words)) if question[1] == "register" else question[2]])
        return {"node-id": words[-1][2]}

    monkeypatch.setattr(operate, "ask_flwr", answer)
    return here, words


def test_a_replaced_key_takes_the_old_node_away(asked):
    here, words = asked
    operate.register(here, {})
    operate.register(here, {})
    assert [question[1] for question in words] == ["register", "register"]
    node = json.loads((here.state / "registered" / "site-02").read_text())["node"]
    rotation.new_key(here.path, "site-02")
    operate.register(here, {})
    assert words[2:] == [["supernode", "unregister", node], ["supernode", "register", "3"]]
    here.site("site-02").public_key.write_text("nothing")
    with pytest.raises(ConfigError, match=r"site\.pub is not a public key"):
        operate.register(here, {})


@pytest.mark.parametrize("database", [True, False])
def test_notes_on_keys_do_not_outlive_the_database(made, tmp_path, monkeypatch, database):
    here = dataclasses.replace(made, path=tmp_path, insecure=True)
    note = here.state / "registered" / "site-01"
    note.parent.mkdir(parents=True)
    note.write_text("{}")
    if database:
        (here.state / "superlink.db").touch()
    monkeypatch.setattr(operate, "answers", lambda *words: False)
    monkeypatch.setattr(launch, "command", lambda words: [sys.executable, "-c", "pass"])
    with pytest.raises(RunError, match="the SuperLink did not start"), operate.server(here, print):
        pass
    assert note.exists() == database


def test_the_superlink_is_reached_on_its_own_machine_whatever_the_gate_binds(made, tmp_path):
    for listen in ("0.0.0.0:8000", "[::]:8000", "10.0.0.5:8000"):
        here = dataclasses.replace(made, path=tmp_path, listen=listen)
        port = entrance.choose_port(here)
        assert port != 8000
        assert operate.local_address(here) == f"127.0.0.1:{port}"
    alone = dataclasses.replace(made, address="localhost:8123", insecure=True)
    assert operate.local_address(alone) == "127.0.0.1:8123"


def test_status_goes_on_where_flower_gives_no_answer(made, monkeypatch):
    def failing(*words):
        raise FlowerError("'flwr supernode' failed")

    monkeypatch.setattr(operate, "answers", lambda *words: True)
    monkeypatch.setattr(operate, "ask_flwr", failing)
    found = status.look(made)
    assert found.server == "up"
    assert [row[:2] for row in found.sites] == [("site-01", "?"), ("site-02", "?")]


def test_following_bears_with_a_server_that_is_slow_twice(made, monkeypatch, tmp_path):
    here = dataclasses.replace(made, path=tmp_path)
    monkeypatch.setattr(operate, "QUIET", 0.0)
    probes = [False, False, True, False, False, True, False, False, False]
    monkeypatch.setattr(operate, "answers", lambda *words: probes.pop(0))
    monkeypatch.setattr(operate, "_over", lambda *words: "")
    (last,) = operate.follow(here, "1", every=0.001)
    assert "the server is gone" in last["reason"]
    assert probes == []


def test_following_waits_while_the_server_says_that_it_starts_the_run_again(made, monkeypatch, tmp_path):
    here = dataclasses.replace(made, path=tmp_path)
    log, asked = LiveLog(here.state / "live.jsonl", here.sites, "1"), []
    monkeypatch.setattr(operate, "QUIET", 0.0)
    monkeypatch.setattr(operate, "answers", lambda *words: True)

    def over(*words):
        asked.append(1)
        if len(asked) in (2, 4):
            log.tell("again", text="starting again")
        return "over"

    monkeypatch.setattr(operate, "_over", over)
    with operate.supervisor(here).taken():
        lines = list(operate.follow(here, "1", every=0.001))
    assert [line["event"] for line in lines] == ["again", "again", "stopped"]
    assert len(asked) == 4 + operate.PROBES


def test_a_run_that_flower_does_not_know_is_over_and_a_failed_question_is_put_again(made, monkeypatch):
    answers = [RunError("no answer"), FlowerError("busy"), {"runs": [{"status": "running"}]}]
    over = [FlowerError("Run ID not found."), {"runs": []}, {"runs": [{"status": "unknown"}]}]

    def answer(*words):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(operate, "ask_flwr", answer)
    assert [operate._over(made, "1") for _ in range(3)] == ["", "", ""]
    answers.extend(over)
    assert all("Flower says 'unknown" in operate._over(made, "1") for _ in range(3))


def test_an_app_is_unpacked_anew_at_every_start_of_a_site(made, monkeypatch):
    """Flower never looks again at what it has unpacked; a power cut may have emptied it."""
    site = made.site("site-01")
    emptied = site.state / "flower" / "apps" / "proxyfl.1" / "client_app.py"
    emptied.parent.mkdir(parents=True)
    emptied.touch()

    def stop(*given):
        raise RunError("far enough")

    monkeypatch.setattr(operate.entrance, "line", stop)
    with pytest.raises(RunError, match="far enough"), operate.site(site, made.path / "data-0.npz", print):
        pass
    assert not emptied.parent.exists()
    assert emptied.parents[2].is_dir()
