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
