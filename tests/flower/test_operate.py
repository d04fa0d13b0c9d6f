"""Approval, audit log, signatures and life cycle with the real programs: docs/operate.md."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import PROXYFL, deployment, experiment, free_port, loopback, wait_for

from proxyfl.core.trees import merge
from proxyfl.deploy import model_signing, operate, rotation, signing
from proxyfl.deploy.app_template import PACKAGE
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Deployment
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, play, same_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux"),
]

TWO = {"clients": 2, "per_round": 2, "subset": 80, "labels__per_class": 4}


def command(*words):
    done = subprocess.run([*PROXYFL, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def events(place):
    return list(AuditLog(place).verify().lines)


def hashes(place, event, **about):
    """Of what the messages of a round held, as a log has them."""
    lines = [line for line in events(place) if line["event"] == event]
    return [line["sha256"] for line in lines if about.items() <= line.items()]


def assert_same_end(made, config, folder):
    told = Told()
    play(config, prepare(config), folder / "inline", observers=[told])
    assert same_state(checkpoint.load_newest(RunDirectory(made.run))[0].state, told.reports[-1].state)


def test_what_is_approved_is_done_noted_at_both_ends_and_signed_and_more_rounds_need_approval(tmp_path):
    config = experiment("fedavg", rounds=2, **TWO)
    made = deployment(tmp_path / "federation", config)
    with loopback(made) as federation:
        federation.move_sites(tmp_path / "outside")
        federation.server()
        federation.sites()
        federation.finish(federation.run())
        for name in made.sites:
            site = tmp_path / "outside" / name
            for round in (1, 2):
                sent = hashes(made.path, "sent", site=name, kind="train", round=round)
                assert sent == hashes(site, "received", kind="train", round=round)
                came = hashes(made.path, "received", site=name, kind="train", round=round)
                assert came == hashes(site, "sent", kind="train", round=round)
                assert len(sent) == len(came) == 1
        model = made.run / "models" / "last.safetensors"
        assert "round 2" in command("verify", model, "--ca", tmp_path / "outside" / "site-01" / "ca.crt")
        signed = [
            line["round"]
            for line in events(made.path)
            if line["event"] == "signed" and line["model"] == "last"
        ]
        assert signed == [1, 2]

        longer = federation.run("--rounds", "3")
        site = federation.started["site-01"]
        federation.wait_text(
            site, "refused: the site's owner did not approve federation.rounds = 3, approved: 2"
        )
        wait_for(
            lambda: "did not approve federation.rounds = 3" in federation.started["server"].text(), "told"
        )
        for name in made.sites:
            shown = command("deploy", "approve", tmp_path / "outside" / name, "--yes")
            assert "federation.rounds = 3, approved: 2" in shown
        federation.finish(longer)
    assert Run(made.run).finished
    assert_same_end(
        made,
        dataclasses.replace(config, federation=dataclasses.replace(config.federation, rounds=3)),
        tmp_path,
    )
    assert model_signing.check(model, made.ca_certificate).about["round"] == 3
    assert "refused" in {line["event"] for line in events(tmp_path / "outside" / "site-01")}


def test_a_server_that_sends_another_app_or_method_is_refused_by_every_site(tmp_path):
    """The operator's key is the attacker's: signature and certificates are right."""
    config = experiment("fedavg", rounds=2, **TWO)
    made = deployment(tmp_path / "federation", config, patience=60.0)
    with loopback(made) as federation:
        federation.move_sites(tmp_path / "outside")
        server = federation.server()
        federation.sites()
        for name in made.sites:
            federation.wait_text(federation.started[name], f"{name} is connected")
        other = merge(made.experiment, {"method": {"name": "proxyfl"}})
        dataclasses.replace(made, experiment={**other, "method": {"name": "proxyfl"}}).write()
        run = federation.run()
        for name in made.sites:
            federation.wait_text(federation.started[name], "refused: the site's owner did not approve ")
        federation.wait_text(run, "site-01 cannot take part: the site's owner did not approve ")
        run.process.wait(300)
        assert run.process.returncode != 0
        assert not made.run.exists()

        made.write()
        spy = made.app / PACKAGE / "client_app.py"
        spy.write_text(spy.read_text() + "\nimport pathlib; pathlib.Path('/tmp/nobody').exists()\n")
        signing.sign_app(made)
        server.kill()
        federation.server()
        for name in made.sites:
            federation.started[name].kill()
            federation.site(made.sites.index(name))
            federation.wait_text(federation.started[name], f"{name} is connected")
        run = federation.run()
        for name in made.sites:
            federation.wait_text(federation.started[name], "refused: the site's owner approved the app ")
        federation.wait_text(run, "or the site's owner did not approve it")
        run.process.wait(300)
    for name in made.sites:
        lines = events(tmp_path / "outside" / name)
        kinds = [line.get("kind") for line in lines if line["event"] == "refused"]
        assert {"enrol", "app"} <= set(kinds)
        assert "sent" not in {line["event"] for line in lines}


def test_keys_and_authority_are_replaced_and_server_and_site_move_while_a_run_lasts(tmp_path):
    config = experiment("fedavg", rounds=4, **TWO)
    made = deployment(tmp_path / "federation", config)
    outside = tmp_path / "outside"
    with loopback(made) as federation:
        federation.move_sites(outside)
        federation.server()
        federation.sites()
        run = federation.run()
        federation.wait_event(lambda line: line["event"] == "finished round" and line["round"] == 1)
        command("deploy", "stop", made.path)
        run.process.wait(300)

        # A new key for site-01, live: the former one goes on until the new one is there.
        command("deploy", "rotate", made.path, "--site", "site-01")
        assert "site-01" in command("deploy", "status", made.path)
        federation.started["site-01"].kill()
        for name in ("site.key", "site.pub", "site.crt"):
            shutil.copy(made.path / "site-01" / name, outside / "site-01")
        command("deploy", "approve", outside / "site-01", "--yes")
        federation.wait_text(federation.site(0), "site-01 is connected")
        wait_for(
            lambda: "former key locked out" in [e["event"] for e in events(made.path)], "the former key ends"
        )

        # A new authority: first both, then the new one alone.
        command("deploy", "rotate", made.path, "--ca")
        federation.started["server"].kill()
        federation.server()
        for number, name in enumerate(made.sites):
            federation.started[name].kill()
            for file in ("ca.crt", "site.crt"):
                shutil.copy(made.path / name / file, outside / name)
            federation.wait_text(federation.site(number), f"{name} is connected")
        newest = rotation.authority_of(made.ca_certificate)
        wait_for(
            lambda: all(rotation.seen_authority(made, n) == newest for n in made.sites), "new certificates"
        )
        command("deploy", "rotate", made.path, "--ca", "--finish")
        federation.started["server"].kill()

        # The server and a site move to other machines.
        federation.started["site-02"].kill()
        command("deploy", "backup", made.path, tmp_path / "server.tar")
        command("deploy", "backup", outside / "site-02", tmp_path / "site.tar")
        made.path.rename(tmp_path / "lost")
        shutil.rmtree(outside / "site-02")
        command("deploy", "restore", tmp_path / "server.tar", made.path)
        command("deploy", "restore", tmp_path / "site.tar", outside / "site-02")
        federation.server()
        federation.wait_text(federation.site(1), "site-02 is connected")
        federation.finish(federation.run())
        assert operate.answers(Deployment.read(made.path))
    assert_same_end(made, config, tmp_path)
    for place in (made.path, outside / "site-01", outside / "site-02"):
        command("deploy", "audit", place)


NEWER = """
from proxyfl.engines.flower import protocol
protocol.OLDEST = protocol.NEWEST = 9
"""
"""A site whose program speaks a version of the messages that the server does not know."""


def trial(path, *more):
    """A federation as ``deploy init`` makes it, with its sample data where the programs look for them."""
    settings = (
        "federation.per_round=2",
        "data.subset=80",
        "train.epochs=1",
        "train.batch=8",
        "model.width=1",
    )
    words = [word for setting in (*settings, "keep.checkpoints=9") for word in ("--set", setting)]
    place = ("--sample", "--rounds", 1, "--host", "127.0.0.1", "--port", free_port())
    command("deploy", "init", path, "--method", "fedavg", *place, *words, *more)
    for number, file in enumerate(sorted((path / "sample").glob("site-*.npz"))):
        shutil.copy(file, path / f"data-{number}.npz")
    return Deployment.read(path)


def test_an_export_is_signed_and_a_new_federation_starts_from_the_model_once_versions_fit(tmp_path):
    first = trial(tmp_path / "first")
    with loopback(first) as federation:
        federation.server()
        federation.sites()
        federation.finish(federation.run())
    model, authority = tmp_path / "model.onnx", first.path / "site-02" / "ca.crt"
    assert f"{model}.sig" in command("export", first.run, "-o", model)
    assert "round 1" in command("verify", model, "--ca", authority)
    model.write_bytes(model.read_bytes() + b" ")
    words = [*PROXYFL, "verify", str(model), "--ca", str(authority)]
    assert subprocess.run(words, capture_output=True).returncode == 1

    second = trial(tmp_path / "second", "--weights", first.run)
    plugin = tmp_path / "newer.py"
    plugin.write_text(NEWER)
    with loopback(second) as federation:
        federation.server()
        federation.site(0)
        newer = federation.site(1, plugin=str(plugin))
        run = federation.run()
        told = "speaks version 1 of the messages, site-02 (proxyfl"
        federation.wait_text(newer, told)
        federation.wait_text(run, "site-02 cannot take part: ")
        assert "upgrade the server to the proxyfl of site-02" in newer.text()
        newer.kill()
        federation.site(1)
        federation.finish(run)
    begun = checkpoint.read(second.run / "checkpoints" / "round-00000000").state.weights
    ended = checkpoint.load_newest(RunDirectory(first.run))[0].state.weights
    assert begun.keys() == ended.keys()
    assert all(torch.equal(begun[name], ended[name]) for name in begun)
    assert Run(second.run).finished
