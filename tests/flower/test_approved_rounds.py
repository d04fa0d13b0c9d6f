"""Rounds between a server and sites that approved them, without a network: logs, signatures, more rounds."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import MessageType
from loopback import deployment, experiment
from serving import newest, pem, server, texts
from wireless import Node, WirelessGrid, handled_by, sides

from proxyfl.core.errors import RunError
from proxyfl.deploy import approval, longer, model_signing
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.desk import Desk
from proxyfl.engines.flower import codec
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, play, same_state

KINDS = {MessageType.TRAIN: "train", MessageType.EVALUATE: "evaluate", MessageType.QUERY: "enrol"}


def at_desks(made, config):
    """A grid of sites whose messages go over their desks."""
    nodes = {}
    for number, side in enumerate(sides(prepare(config), made.path / "elsewhere")):
        site, act = made.site(side.name), handled_by(side)

        def handle(kind, records, site=site, act=act):
            app = approval.Offer.of(made).app
            return Desk(site, app).answer(KINDS[kind], records, lambda: act(kind, records))

        nodes[50 + number] = Node(handle, pem(made, side.name))
    return WirelessGrid(nodes)


def approve_all(made):
    for site in map(made.site, made.sites):
        approval.approve(site, approval.newest_offer(site)[0])


def events(place):
    return list(AuditLog(place).verify().lines)


def hashes(place, event, **about):
    lines = [line for line in events(place) if line["event"] == event]
    return [line["sha256"] for line in lines if about.items() <= line.items()]


def test_both_ends_note_the_same_and_more_rounds_wait_for_approval(tmp_path, quick):
    sizes = {"clients": 2, "per_round": 2, "subset": 80, "labels__per_class": 4}
    config = experiment("fedavg", model__name="little", rounds=2, **sizes)
    made = deployment(tmp_path / "f", config, patience=1.0)
    net = at_desks(made, config)
    with pytest.raises(RunError, match="0 of 2 sites have enrolled"):
        server(made, net).run()
    assert any("the owner of site-01 has not approved" in text for text in texts(made))
    approve_all(made)
    server(made, net).run()
    for name in made.sites:
        for round in (1, 2):
            about = {"kind": "train", "round": round}
            here, there = (hashes(made.path, event, site=name, **about) for event in ("sent", "received"))
            assert here == hashes(made.path / name, "received", **about) != []
            assert there == hashes(made.path / name, "sent", **about) != []
    model = made.run / "models" / "last.safetensors"
    assert model_signing.check(model, made.ca_certificate).about == {"federation": "federation", "round": 2}
    signed = [line for line in events(made.path) if line["event"] == "signed" and line["model"] == "last"]
    assert [line["round"] for line in signed] == [1, 2]

    more = longer.lengthen(made, 3)
    with pytest.raises(RunError, match="round 3") as stopped:
        server(more, net).run()
    told = str(stopped.value)
    assert "(site-01, site-02: the site's owner did not approve" in told
    assert "proxyfl deploy approve SITE" in told
    refusal = "the site's owner did not approve federation.rounds = 3, approved: 2"
    assert any(refusal in text for text in texts(made))
    assert [line for line in events(made.path) if refusal in str(line.get("reason"))]
    approve_all(more)
    server(more, net).run()
    assert Run(made.run).finished
    told = Told()
    play(more.config, prepare(config), tmp_path / "inline", observers=[told])
    assert same_state(newest(made.run), told.reports[-1].state)
    kinds = [line["event"] for line in events(made.path)]
    assert [kinds.count(kind) for kind in ("run started", "run resumed", "run finished")] == [1, 2, 2]
    assert kinds.count("run stopped") == 2


PRIVATE = {"privacy__clip": 1.0, "privacy__draw": "system", "federation__weighting": "uniform"}


def waiting(tmp_path, first="site-01"):
    """A private federation of two sites that needs both; they approved one round, one of them a second."""
    sizes = {"clients": 2, "per_round": 2, "subset": 80, "labels__per_class": 4}
    config = experiment("fedavg", model__name="little", rounds=1, **sizes, **PRIVATE)
    made = deployment(tmp_path / "f", config, patience=4000.0)
    net = at_desks(made, config)
    approve_all(made)
    server(made, net).run()
    more = longer.lengthen(made, 2)
    agree(more, first)
    return more, net


def agree(made, name):
    site = made.site(name)
    approval.approve(site, approval.Offer.of(made))


def before_training(net, node, act):
    """``act`` is called with the number of each attempt at the second round before the node is asked."""
    usual, attempts = net.nodes[node].handler, []

    def handler(kind, records):
        if kind == MessageType.TRAIN:
            attempts.append(kind)
            act(len(attempts))
        return usual(kind, records)

    net.nodes[node].handler = handler
    return attempts


def trained(made, name):
    return len(hashes(made.path / name, "sent", kind="train", round=2))


@pytest.mark.parametrize("sites", [("site-01", "site-02"), ("site-02", "site-01")])
def test_under_differential_privacy_a_round_that_waits_for_approval_takes_one_answer_of_each_site(
    sites, tmp_path, quick
):
    first, second = sites
    made, net = waiting(tmp_path, first)
    node = 50 + made.sites.index(second)
    attempts = before_training(net, node, lambda number: number == 25 and agree(made, second))
    server(made, net).run()
    assert sorted(Run(made.run).metrics[-1]["clients"]) == [0, 1]
    assert len(attempts) == 25
    assert [trained(made, name) for name in made.sites] == [1, 1]
    assert not (made.run / "held").exists()


def test_a_server_that_was_killed_while_it_waited_uses_the_answers_that_it_has(tmp_path, quick):
    made, net = waiting(tmp_path)

    def killed(number):
        if number == 3:
            raise KeyboardInterrupt

    before_training(net, 51, killed)
    with pytest.raises(KeyboardInterrupt):
        server(made, net).run()
    agree(made, "site-02")
    server(made, net).run()
    assert Run(made.run).finished
    assert [trained(made, name) for name in made.sites] == [1, 1]


def test_an_answer_that_the_server_refused_or_that_is_damaged_is_requested_again(tmp_path, quick):
    made, net = waiting(tmp_path)
    usual = net.nodes[50].handler
    answers = []

    def handler(kind, records):
        found = usual(kind, records)
        if kind == MessageType.TRAIN:
            answers.append(found)
            if len(answers) == 1:
                header = {**codec.header_of(found), "samples": 10**6}
                found = codec.content(header, {codec.OWN: found.array_records[codec.OWN]})
        return found

    net.nodes[50].handler = handler

    def act(number):
        if number == 3:
            file = next((made.run / "held").iterdir())
            file.write_bytes(file.read_bytes()[:-1])
        if number == 4:
            agree(made, "site-02")

    before_training(net, 51, act)
    server(made, net).run()
    assert Run(made.run).finished
    assert len(answers) == 3
