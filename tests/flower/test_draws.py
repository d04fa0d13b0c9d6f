"""A round whose own sites cannot make its quorum asks others: by a rule, noted, the same after a crash."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import MessageType
from loopback import deployment, experiment
from serving import connect, newest, server, texts

from proxyfl.core.errors import RunError
from proxyfl.deploy.draws import noted
from proxyfl.deploy.enrolment import Enrolment
from proxyfl.engines.flower import codec
from proxyfl.federation.sampling import Redraw, sample_clients
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run
from toybox import same_state

pytestmark = pytest.mark.usefixtures("quick")
FEW = {"rounds": 4, "per_round": 3, "subset": 60, "labels__per_class": 3}
"""Four sites, three a round; with a quorum of two."""


def lose(one, net, nodes, after=1):
    """These nodes are gone once a round is over."""
    usual = one.live.round_finished

    def finished(report):
        usual(report)
        if report.metrics["round"] == after:
            for node in nodes:
                net.nodes[node].online = False

    one.live.round_finished = finished


def on_train(net, what):
    """``what`` is called with each node's number before it trains; what it returns is the answer."""

    def around(number, honest):
        def handler(kind, records):
            answer = what(number) if kind == MessageType.TRAIN else None
            return honest(kind, records) if answer is None else answer

        return handler

    for number, node in net.nodes.items():
        node.handler = around(number, node.handler)


def busy():
    return codec.content({"kind": "failure", "reason": "busy", "detail": ""})


def events(deployed, kind="others asked"):
    lines = map(json.loads, (deployed.run / "events.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == kind]


def test_two_of_four_sites_are_lost_and_the_rounds_go_on_with_the_others(tmp_path):
    config = experiment("fedavg", model__name="little", **FEW)
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    one = server(deployed, net)
    lose(one, net, (50, 51))
    one.run()
    lines = Run(deployed.run).metrics
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    population = Enrolment.load(deployed.run, deployed.sites).population(1)
    own = [sample_clients(config.federation, config.seed, line["round"], population) for line in lines]
    dead_ends = [len({2, 3} & set(drawn)) < 2 for drawn in own]
    assert any(dead_ends[1:]), "this seed must lead into the dead end"
    for line, stuck in zip(lines[1:], dead_ends[1:], strict=True):
        assert sorted(line["clients"]) == [2, 3]
        assert (line.get("attempt"), line.get("online")) == ((2, [2, 3]) if stuck else (None, None))
    assert "attempt" not in lines[0]
    asked = events(deployed)
    assert [line["round"] for line in asked] == [k + 1 for k, stuck in enumerate(dead_ends) if k and stuck]
    assert any("attempt 2 asks site-0" in text for text in texts(deployed))


def play_with_lost_sites(folder, config, killed):
    """Sites 1 and 2 go after round 1. ``killed``: the server, too, in the middle of the first redraw; when it
    comes back, all sites are there again, but the round asks whom it asked before.
    """
    deployed = deployment(folder, config)
    net = connect(deployed, config)
    one = server(deployed, net)
    lose(one, net, (50, 51))
    trained = []

    def interrupted(number):
        if events(deployed) and killed:
            trained.append(number)
            if len(trained) == 2:
                raise KeyboardInterrupt

    def back(report, usual=one.live.round_finished):
        usual(report)
        if "attempt" in report.metrics:
            for node in net.nodes.values():
                node.online = True

    one.live.round_finished = back
    on_train(net, interrupted)
    if not killed:
        one.run()
        return deployed
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert len(events(deployed)) == 1
    for node in net.nodes.values():
        node.online = True
    server(deployed, net).run()
    return deployed


@pytest.mark.parametrize("method", ["fedloke", pytest.param("proxyfl", marks=pytest.mark.slow)])
def test_a_server_killed_between_asking_others_and_the_checkpoint_asks_them_again(tmp_path, method):
    config = experiment(method, model__name="little", **{**FEW, "rounds": 3})
    straight, killed = (
        play_with_lost_sites(tmp_path / name, config, name == "killed") for name in ("straight", "killed")
    )
    assert same_state(newest(straight.run), newest(killed.run))
    kept = ("round", "clients", "attempt", "online", "accuracy", "losses")
    found = [[{k: line.get(k) for k in kept} for line in Run(one.run).metrics] for one in (straight, killed)]
    assert found[0] == found[1]
    assert [line["attempt"] for line in found[1]].count(2) == 1
    assert len(events(killed)) == 1, "a draw that is repeated is not another one"


def test_connected_sites_that_give_no_update_are_asked_three_times_and_then_others(tmp_path):
    config = experiment("fixmatch-lpl", model__name="little", **{**FEW, "rounds": 1, "per_round": 2})
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    asked = []

    def handler(number):
        asked.append(number)
        return busy() if number == 50 + drawn[0] else None

    one = server(deployed, net)
    enrolment = Enrolment("ab" * 8, deployed.sites)
    one._gather(enrolment)
    drawn = sample_clients(config.federation, config.seed, 1, enrolment.population(1))
    on_train(net, handler)
    one.run()
    (line,) = Run(deployed.run).metrics
    assert (line["attempt"], line["online"]) == (2, sorted({0, 1, 2, 3} - {drawn[0]}))
    assert len(line["clients"]) == 2
    assert asked[:6] == [50 + client for client in drawn] * 3
    assert len(asked) == 8


def test_only_sites_that_a_method_can_use_stand_in(tmp_path):
    """Sites 1 and 2 have no labels: FedAvg can do nothing with them."""
    config = experiment("fedavg", model__name="little", **{**FEW, "per_round": 2})
    deployed = deployment(tmp_path / "f", config, quorum=1, patience=1.0)
    net = connect(deployed, config)
    one = server(deployed, net)
    usual = one.registrar._counts

    def unlabelled(client, header):
        return usual(client, {**header, "labelled": 0} if client < 2 else header)

    one.registrar._counts = unlabelled
    lose(one, net, (52,))
    one.run()
    for line in Run(deployed.run).metrics[1:]:
        assert set(line["clients"]) <= {3}
        assert line.get("online", [3]) == [3]


@pytest.mark.parametrize("sampling", ["stream", "poisson"])
def test_with_differential_privacy_nobody_stands_in(tmp_path, sampling):
    """The account reckons with sites that chance alone chose."""
    private = {"privacy__clip": 1.0, "privacy__draw": "system", "federation__weighting": "uniform"}
    config = experiment(
        "fedavg", model__name="little", **{**FEW, **private, "rounds": 9, "federation__sampling": sampling}
    )
    deployed = deployment(tmp_path / "f", config, patience=1.0)
    net = connect(deployed, config)
    one = server(deployed, net)
    lose(one, net, (50, 51))
    with pytest.raises(RunError, match="differential privacy"):
        one.run()
    assert events(deployed) == []
    assert all("attempt" not in line for line in Run(deployed.run).metrics)


def test_notes_that_are_no_draws_are_passed_over(tmp_path):
    run = RunDirectory(tmp_path)
    run.event("others asked", round=2, attempt=2, online=[0, 3])
    run.event("others asked", round=2, attempt=3, online=[1])
    run.event("others asked", round="3", attempt=2, online=[1])
    run.event("others asked", round=4, attempt=2, online=None)
    run.event("client failed", round=5, attempt=2, online=[1])
    assert noted(run) == {2: Redraw(3, (1,))}
