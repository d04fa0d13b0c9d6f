"""Sites that join a federation while its run goes on, and leave it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PROXYFL, deployment, experiment, loopback, site_data, wait_for
from serving import newest, pem, server, texts
from test_late import WAITS
from wireless import Node, WirelessGrid, handled_by, sides

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import members
from proxyfl.deploy.enrolment import Enrolment
from proxyfl.deploy.overview import Overview
from proxyfl.deploy.settings import Deployment
from proxyfl.federation.sampling import sample_clients
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import same_state

pytestmark = pytest.mark.usefixtures("quick")
FEW = {
    "per_round": 2,
    "rounds": 5,
    "subset": 80,
    "labels__per_class": 4,
    "keep__checkpoints": 9,
    "model__name": "little",
}


def begun(folder, method="fedavg", **settings):
    """A federation of three sites, the config of four, and what a fourth one does once it is connected."""
    config = experiment(method, **{**FEW, **settings}, clients=4)
    three = dataclasses.replace(config, partition=dataclasses.replace(config.partition, clients=3))
    deployed = deployment(folder, three)
    places = sides(prepare(config), folder / "elsewhere")
    keys = [pem(deployed, side.name) for side in places[:3]]
    net = WirelessGrid({50 + k: Node(handled_by(places[k]), key) for k, key in enumerate(keys)})

    def connect():
        net.nodes[53] = Node(handled_by(places[3]), pem(Deployment.read(folder), "site-04"))

    return config, deployed, net, connect


def after(one, round, what):
    """``what`` happens at the end of a round."""
    usual = one.live.round_finished

    def finished(report):
        usual(report)
        if report.number == round:
            what()

    one.live.round_finished = finished


def joining(folder, method="fedavg", killed=False):
    """A fourth site is added and connects after round 2, and the server may be killed in round 4."""
    config, deployed, net, connect = begun(folder, method)
    one = server(deployed, net)

    def join():
        members.add_site(folder, "site-04")
        connect()

    def stop():
        raise KeyboardInterrupt

    after(one, 2, join)
    if killed:
        usual = one.live.answered

        def answered(answer):
            usual(answer)
            if answer.round == 4:
                stop()

        one.live.answered = answered
        with pytest.raises(KeyboardInterrupt):
            one.run()
        one = server(Deployment.read(folder), net)
    one.run()
    return config, deployed


@pytest.mark.parametrize("method", ["fedavg", pytest.param("proxyfl", marks=pytest.mark.slow)])
def test_a_site_joins_a_run_and_takes_part_from_the_next_round_also_after_a_crash(tmp_path, method):
    config, straight = joining(tmp_path / "straight", method)
    _, killed = joining(tmp_path / "killed", method, killed=True)
    lines = Run(straight.run).metrics
    enrolment = Enrolment.load(straight.run, Deployment.read(straight.path).sites)
    assert enrolment.joined == {3: 3}
    for line in lines:
        population = enrolment.population(line["round"])
        assert len(population.holders) == (3 if line["round"] < 3 else 4)
        expected = sample_clients(config.federation, config.seed, line["round"], population)
        assert sorted(line["clients"]) == sorted(expected)
    assert any(3 in line["clients"] for line in lines[2:]), "this seed must choose the new site"
    assert same_state(newest(straight.run), newest(killed.run))
    assert lines == Run(killed.run).metrics
    assert Run(straight.run).client_names == ["site-01", "site-02", "site-03", "site-04"]
    assert any("site-04 takes part from now on" in text for text in texts(straight))
    shown = Overview(straight.path).look()["sites"][3]
    assert (shown["name"], shown["rounds"]["answered"] > 0) == ("site-04", True)
    audit = [json.loads(line) for line in (straight.path / "audit" / "audit.jsonl").read_text().splitlines()]
    kinds = [(line["event"], line.get("round")) for line in audit if line.get("site") == "site-04"]
    assert ("site added", None) in kinds
    assert ("enrolled", 3) in kinds


def test_a_run_that_returns_to_an_older_checkpoint_repeats_rounds_without_who_joined_later(tmp_path):
    _, deployed = joining(tmp_path / "f")
    before = newest(deployed.run)
    for name in ("round-00000005", "round-00000004", "round-00000003", "round-00000002"):
        file = deployed.run / "checkpoints" / name / "state.safetensors"
        file.write_bytes(b"damaged")
    net = joined_net(tmp_path / "f")
    server(Deployment.read(deployed.path), net).run()
    assert same_state(newest(deployed.run), before)


def joined_net(folder):
    """All four sites, connected from the start, with the state that is on their disks."""
    config = experiment("fedavg", **FEW, clients=4)
    deployed = Deployment.read(folder)
    places = sides(prepare(config), folder / "elsewhere")
    return WirelessGrid(
        {50 + k: Node(handled_by(side), pem(deployed, side.name)) for k, side in enumerate(places)}
    )


def test_a_site_that_joined_can_leave_again(tmp_path):
    _, deployed, net, connect = begun(tmp_path / "f", per_round=3)
    one = server(deployed, net)
    after(one, 1, lambda: (members.add_site(tmp_path / "f", "site-04"), connect()))
    after(one, 3, lambda: members.remove_site(tmp_path / "f", "site-04"))
    one.run()
    took_part = [line["round"] for line in Run(deployed.run).metrics if 3 in line["clients"]]
    assert took_part
    assert set(took_part) <= {2, 3}
    with pytest.raises(ConfigError, match="already"):
        members.add_site(tmp_path / "f", "site-04")


def test_who_watches_a_federation_sees_a_site_that_is_added(tmp_path):
    _, deployed, net, _ = begun(tmp_path / "f")
    server(deployed, net).run()
    watching = Overview(deployed.path)
    before = watching.look()["sites"]
    members.add_site(tmp_path / "f", "lyon")
    now = watching.look()["sites"]
    assert [site["name"] for site in now] == [*(site["name"] for site in before), "lyon"]
    assert [site["images"] for site in now[:3]] == [site["images"] for site in before]


def test_sites_a_round_and_quorum_of_a_run_stay(tmp_path):
    _, deployed, net, _ = begun(tmp_path / "f")
    server(deployed, net).run()
    said = " ".join(members.add_site(tmp_path / "f", "lyon"))
    grown = Deployment.read(tmp_path / "f")
    assert grown.sites[-1] == "lyon"
    assert (grown.config.federation.per_round, grown.quorum) == (2, 2)
    assert "as before" in said
    server(grown, net).run()  # a finished run has nothing against it


def test_with_differential_privacy_nobody_joins(tmp_path):
    private = {"privacy__clip": 1.0, "privacy__draw": "system", "federation__weighting": "uniform"}
    _, deployed, net, _ = begun(tmp_path / "f", **private)
    net.nodes[52].online = False
    deployed = dataclasses.replace(deployed, deadline=1.0)
    one = server(deployed, net)

    def back():
        net.nodes[52].online = True
        with pytest.raises(ConfigError, match="differential privacy"):
            members.add_site(tmp_path / "f", "site-04")

    after(one, 1, back)
    one.run()
    assert all(set(line["clients"]) <= {0, 1} for line in Run(deployed.run).metrics)


def test_sites_that_change_places_are_no_additions(tmp_path):
    _, deployed, net, _ = begun(tmp_path / "f")
    server(deployed, net).run()
    mixed = dataclasses.replace(deployed, sites=("site-02", "site-01", "site-03"))
    with pytest.raises(RunError, match="in their order"):
        Enrolment.load(deployed.run, mixed.sites)


def node_of(made, client):
    """What the server says of a site's node."""
    words = [*PROXYFL, "deploy", "status", str(made.path), "--json"]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return json.loads(found)["sites"][client]["node"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux")
def test_a_late_update_and_a_site_that_joins_with_the_real_programs(tmp_path):
    """Site 3 trains longer than round 2 lasts; in round 4, while it is still at work, site 4 is added."""
    config = experiment("fedavg", rounds=7, per_round=3, clients=4, federation__late="next")
    three = dataclasses.replace(config, partition=dataclasses.replace(config.partition, clients=3))
    made = deployment(tmp_path / "federation", three, quorum=2, deadline=90.0)
    site_data(made.path, prepare(config))
    plugin = tmp_path / "waits.py"
    plugin.write_text(WAITS.format(folder=str(tmp_path)))
    (tmp_path / "hold-2").touch()
    (tmp_path / "hold-4").touch()
    with loopback(made) as federation:
        federation.server()
        federation.sites([0, 1])
        federation.site(2, plugin=plugin)
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round" and line["round"] == 2)
        (tmp_path / "hold-2").unlink()
        federation.wait_event(lambda line: line["event"] == "round" and line["round"] == 4)
        added = federation.start("added", "deploy", "add-site", made.path, "site-04")
        assert "takes part from the first round after" in federation.finish(added)
        federation.made = Deployment.read(made.path)
        federation.wait_text(federation.site(3), "site-04 is connected")
        wait_for(lambda: node_of(made, 3) == "online", "site-04 is not online")
        (tmp_path / "hold-4").unlink()
        text = federation.finish(run)
    lines = Run(made.run).metrics
    assert [line["round"] for line in lines if "late" in line][:1] == [3]
    assert lines[2]["late"] == [2]
    assert "2" in lines[1]["failed"]
    assert 2 not in lines[1]["clients"]
    assert "the update of site-03 of round 2 arrived" in text
    assert "site-04 takes part from now on" in text
    joined = Enrolment.load(made.run, Deployment.read(made.path).sites).joined
    assert joined.keys() == {3}
    assert joined[3] >= 5
    assert any(3 in line["clients"] for line in lines[joined[3] - 1 :])
    for name, one in federation.started.items():
        assert "Traceback" not in one.text(), name
