"""A real federation: Flower's programs on this machine, with TLS and authentication.

Most tests use separate processes on the loopback device; one has a network namespace for each site, where the
machine allows it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PATIENCE, deployment, descendants, experiment, loopback, named, wait_for
from namespaces import server_address

from proxyfl.deploy import operate, pki
from proxyfl.runs import checkpoint
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, gone, play, same_state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
ROUNDS = 3


def inline_states(config, folder):
    told = Told()
    play(config, prepare(config), folder, observers=[told])
    return [report.state for report in told.reports]


def saved_states(run: Path, rounds: int):
    places = [run / "checkpoints" / f"round-{round:08d}" for round in range(1, rounds + 1)]
    return [checkpoint.read(place).state for place in places]


def killed_between_answer_and_checkpoint(federation, round):
    """Kill the server's programs while one of the round's sites has answered and the other has not."""
    chosen = federation.wait_event(lambda line: line["event"] == "round" and line["round"] == round)
    first, *_, last = chosen["clients"]
    node = named(federation.started[federation.made.sites[last]], "flower-supernode")
    os.kill(node, signal.SIGSTOP)
    federation.wait_event(
        lambda line: line["event"] == "answered" and line["round"] == round and line["client"] == first
    )
    assert federation.checkpoint() == round - 1
    federation.started["server"].kill()
    with contextlib.suppress(ProcessLookupError):  # on a slow machine the site has started another one by now
        os.kill(node, signal.SIGCONT)


def stranger(made, name, **changes):
    """A folder like that of the first site, to be spoilt."""
    known = made.site(made.sites[0])
    shutil.copytree(known.path, made.path / name, ignore=shutil.ignore_patterns("state"))
    return dataclasses.replace(known, path=made.path / name, **changes)


@contextlib.contextmanager
def strangers(made):
    """Nodes that must not get in, and what they say: one with a key of no site, one of another federation,
    one without TLS."""
    unregistered, misled = stranger(made, "unregistered"), stranger(made, "misled")
    plain = stranger(made, "plain", insecure=True)
    for site in (unregistered, misled):
        site.private_key.unlink()
        site.public_key.unlink()
        pki.create_site_keys(site.private_key, site.public_key, site.name)
    authority = misled.ca_certificate, misled.path / "other.key"
    misled.ca_certificate.unlink()
    pki.create_authority(*authority, "another")
    pki.issue_site(misled.certificate, misled.public_key, authority, misled.name)
    # With a stolen authority's key, even.
    ours = made.ca_certificate, made.ca_key
    pki.issue_site(unregistered.certificate, unregistered.public_key, ours, unregistered.name)
    data, said = made.path / "data-0.npz", [[], [], []]
    with contextlib.ExitStack() as stack:
        sites = zip((unregistered, misled, plain), said, strict=True)
        programs = [stack.enter_context(operate.site(one, data, words.append)) for one, words in sites]
        yield programs, said


def refused(strange):
    programs, (unregistered, misled, _) = strange
    wait_for(lambda: any("does not know the key" in line for line in unregistered), "a stranger was let in")
    wait_for(lambda: any("is not the federation's" in line for line in misled), "a server was believed")
    plain = programs[2]
    wait_for(lambda: plain.log.read_text().count("Connection attempt failed") > 1, "no attempt in the clear")
    assert all(program.ended is None for program in programs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_sites_are_bit_equal_to_the_simulation(tmp_path):
    """What takes half a minute of the test below."""
    config = experiment("proxyfl", rounds=1, clients=2, per_round=2, keep__checkpoints=2)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        federation.finish(federation.run())
        assert set(activated(made)) == registered(made)
    assert_same_bits(config, made, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_sites_are_bit_equal_to_the_simulation_though_the_server_is_killed(tmp_path):
    config = experiment("proxyfl", rounds=ROUNDS, per_round=2, keep__checkpoints=ROUNDS + 1)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        with strangers(made) as strange:
            refused(strange)
        run = federation.run()
        killed_between_answer_and_checkpoint(federation, round=2)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 2
        assert "the server is gone" in run.text()

        federation.server()
        federation.finish(federation.run())
        assert set(activated(made)) == registered(made)
        gone_with_ctrl_c(federation)

    assert_same_bits(config, made, tmp_path)
    lines = Run(made.run).metrics
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    assert all(line["evaluation"] == {"where": "server", "images": 100} for line in lines)


def activated(made):
    """The nodes that the SuperLink has let in, by its own log."""
    return re.findall(r"Activated node_id=(\d+)", (made.state / "superlink.log").read_text())


def registered(made):
    return {json.loads((made.state / "registered" / name).read_text())["node"] for name in made.sites}


def assert_same_bits(config, made, folder):
    wanted = inline_states(config, folder / "inline")
    found = saved_states(made.run, config.federation.rounds)
    assert [same_state(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * len(wanted)


def gone_with_ctrl_c(federation):
    """Ctrl-C ends every verb that still runs, and nothing that it started outlives it."""
    verbs = [one for one in federation.started.values() if one.process.poll() is None]
    assert len(verbs) == len(federation.made.sites) + 1
    below = [pid for one in verbs for pid in descendants(one.process.pid)]
    assert len(below) >= 2 * len(verbs)
    for one in verbs:
        one.process.send_signal(signal.SIGINT)
    for one in verbs:
        assert one.process.wait(PATIENCE) == 130
        assert "Traceback" not in one.text()
    wait_for(lambda: all(map(gone, below)), "a program of Flower's was left behind")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["fedloke", "sage"])
def test_other_methods_are_bit_equal_too(tmp_path, name):
    config = experiment(name, rounds=2, clients=3, per_round=2, keep__checkpoints=3)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        federation.run()
        killed_between_answer_and_checkpoint(federation, round=2)
        federation.server()
        federation.finish(federation.run())
    assert_same_bits(config, made, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_labels_in_a_folder_at_the_server_are_bit_equal_too(tmp_path):
    """SemiFL: no site has a label, and the server trains on its own images after every mean."""
    small = {"rounds": 2, "clients": 3, "per_round": 2, "keep__checkpoints": 3, "method__tau": 0.1}
    config = experiment("semifl", scenario="server", **small)
    made = deployment(tmp_path / "federation", config)
    assert sorted(path.name for path in made.server_data_path.iterdir()) == list(made.classes)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        federation.finish(federation.run())
    assert_same_bits(config, made, tmp_path)
    lines = Run(made.run).metrics
    assert all(line["server"]["steps"] > 0 and len(line["clients"]) == 2 for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_site_that_is_killed_is_named_and_comes_back(tmp_path):
    config = experiment("fedavg", rounds=60, clients=3, per_round=3)
    made = deployment(tmp_path / "federation", config, quorum=2)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        run = federation.run()
        done = federation.wait_event(lambda line: line["event"] == "finished round")
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] > done["round"])
        first = federation.started["site-03"]
        second = federation.start("second", "deploy", "site", made.path / "site-03", "--data", made.file)
        assert second.process.wait(PATIENCE) == 2
        assert f"site-03 is running already, as process {first.process.pid}" in second.text()
        first.kill()
        lost = federation.wait_event(lambda line: line["event"] == "failed")
        assert lost["site"] == "site-03"
        assert lost["text"].startswith(f"round {lost['round']}: site-03 ")
        assert lost["text"].endswith("; the round continues without it")
        federation.wait_event(
            lambda line: line["event"] == "finished round" and line["round"] == lost["round"]
        )
        federation.site(2)
        federation.wait_event(
            lambda line: line["event"] == "answered" and line["round"] > lost["round"] and line["client"] == 2
        )
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(PATIENCE) == 130
        assert "stopped; continue with: proxyfl deploy run" in run.text()
        assert not operate.is_running(made)
    metrics = Run(made.run).metrics
    assert metrics[lost["round"] - 1]["failed"].keys() == {"2"}
    assert sorted(metrics[lost["round"] - 1]["clients"]) == [0, 1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_of_four_sites_are_killed_and_the_run_ends_with_the_other_two(tmp_path):
    """Three a round, a quorum of two: in some rounds only one of the sites drawn is left."""
    config = experiment("fedavg", rounds=4, per_round=3)
    made = deployment(tmp_path / "federation", config, quorum=2)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round")
        for name in ("site-01", "site-02"):
            federation.started[name].kill()
        text = federation.finish(run)
    lines = Run(made.run).metrics
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    replaced = [line for line in lines if "attempt" in line]
    assert replaced, "this seed must lead into the dead end"
    for line in replaced:
        assert (sorted(line["clients"]), line["online"]) == ([2, 3], [2, 3])
        assert f"round {line['round']}: too few of" in text


HOSTILE = """
import dataclasses, os
from proxyfl.federation.client import ClientTrainer

honest = ClientTrainer.train

def train(self, task, data, *more, **named):
    update = honest(self, task, data, *more, **named)
    weights, extras, metrics = dict(update.weights), dict(update.extras), dict(update.metrics)
    name, what = "classifier.weight", (os.environ["PROXYFL_SITE"][-2:], task.round)
    if what == ("01", 1):
        weights[name] = weights[name] * float("nan")
    elif what == ("01", 2):
        metrics["loss/supervised"] = 1e19
    elif what == ("02", 1):
        weights[name] = weights[name][:3].clone()
    else:
        extras["prior/counts"] = extras["prior/counts"] + 9e14
    return dataclasses.replace(update, weights=weights, extras=extras, metrics=metrics)

ClientTrainer.train = train
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hostile_sites_are_left_out_by_name_and_accuracy_comes_from_the_others(tmp_path):
    config = experiment("proxyfl", rounds=2, per_round=4, labels__per_class=15)
    made = deployment(tmp_path / "federation", config, insecure=True, test="", holdout=0.3)
    plugin = tmp_path / "hostile.py"
    plugin.write_text(HOSTILE)
    with loopback(made) as federation:
        federation.server()
        federation.sites([2, 3])
        for client in range(2):
            name, data = made.sites[client], made.path / f"data-{client}.npz"
            words = ("--plugin", plugin, "deploy", "site", made.path / name, "--data", data)
            federation.start(name, *words)
        text = federation.finish(federation.run())
    assert "WARNING: this federation is insecure" in federation.started["server"].text()
    first, second = Run(made.run).metrics
    assert "'classifier.weight' holds values that are not finite" in first["failed"]["0"]
    assert "its metrics are implausible: loss/supervised is 1e+19" in second["failed"]["0"]
    assert "has shape" in first["failed"]["1"]
    assert "its class counts add up to 9e+15; with " in second["failed"]["1"]
    for line in (first, second):
        assert sorted(line["clients"]) == [2, 3]
        assert set(line["class_counts"]) == {"2", "3"}
        assert line["evaluation"]["where"] == "sites"
        assert line["evaluation"]["sites"] == list(made.sites)
    assert re.search(r"site-02 .*its class counts add up to 9e\+15", text)
    assert "images held out at site-01" in text


def namespaces_allowed():
    tools = all(map(shutil.which, ("ip", "unshare", "nsenter")))
    return tools and subprocess.run(["unshare", "-Urn", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no network namespaces")
def test_sites_in_networks_of_their_own_reach_the_server_and_are_bit_equal(tmp_path):
    config = experiment("proxyfl", rounds=2, clients=2, per_round=2, keep__checkpoints=3)
    hosts = [server_address(client) for client in range(2)]
    made = deployment(tmp_path / "federation", config, hosts=hosts)
    script = Path(__file__).with_name("namespaces.py")
    line = ["unshare", "-Urn", sys.executable, str(script), str(made.path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(script.parent), str(script.parents[1])])}
    done = subprocess.run(line, capture_output=True, text=True, timeout=1700, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_bits(config, made, tmp_path)
