"""A server of a real federation without a network, for the tests of this room."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from wireless import Clock, Node, WirelessGrid, handled_by, sides

from proxyfl.deploy import draws, enrolment, measure, server_run
from proxyfl.deploy.live import LiveReader
from proxyfl.deploy.server_run import DeployedServer
from proxyfl.deploy.site_data import open_test
from proxyfl.engines.flower import grid
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.simulation import prepare


def hurry(monkeypatch):
    """Waiting takes no time, and nothing else takes any of what is waited for."""
    clock = Clock()
    for module in (enrolment, grid, measure, server_run):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(server_run, "RETRY", 0.01)
    monkeypatch.setattr(draws, "AWAY", 0.05)
    monkeypatch.setattr(grid, "POLL_FIRST", 0.01)
    monkeypatch.setattr(server_run, "LOOK", 0.2)
    monkeypatch.setattr(enrolment, "LOOK", 0.2)
    monkeypatch.setattr(measure, "PAUSE", 0.01)


def pem(deployed, name):
    key = serialization.load_ssh_public_key(deployed.site(name).public_key.read_bytes())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def connect(deployed, config, heldout=0):
    """A grid with a node per site, each with its registered key."""
    places = sides(prepare(config), deployed.path / "elsewhere", heldout)
    keys = [b"" if deployed.insecure else pem(deployed, side.name) for side in places]
    pairs = zip(places, keys, strict=True)
    return WirelessGrid({50 + k: Node(handled_by(side), key) for k, (side, key) in enumerate(pairs)})


def server(deployed, net):
    form = (deployed.classes, deployed.channels, deployed.image_size)
    path = deployed.test_path
    return DeployedServer(deployed, net, None if path is None else lambda: open_test(path, *form))


def newest(run):
    return checkpoint.load_newest(RunDirectory(run))[0].state


def texts(deployed):
    lines = LiveReader(deployed.state / "live.jsonl").new()
    return [line["text"] for line in lines if "text" in line]
