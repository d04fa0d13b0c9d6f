"""Differential privacy of single images in a real federation: what is asked for, sent and accounted."""

from __future__ import annotations

import sys
from functools import partial

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment, loopback
from serving import connect, server

from extras import extra
from proxyfl.aggregation.accountant import epsilon
from proxyfl.core.errors import ConfigError
from proxyfl.deploy import members
from proxyfl.deploy.enrolment import Enrolment, forget_counts
from proxyfl.deploy.explain import explain
from proxyfl.federation.records import RecordPrivacy
from proxyfl.methods.registry import method_of
from proxyfl.runs.run import Run

extra("opacus", ": pip install 'proxyfl[dp]'")

PRIVATE = {
    "privacy__record_clip": 1.0,
    "privacy__record_noise": 1.2,
    "privacy__draw": "system",
    "model__norm": "group",
    "train__pool": "unlabelled",
}


def test_explain_says_what_is_covered_and_lists_no_losses(tmp_path):
    config = experiment("fedavg", clients=2, per_round=2, subset=80, labels__per_class=4, **PRIVATE)
    found = explain(deployment(tmp_path / "f", config))
    assert found.metrics == ("steps",)
    assert found.privacy == {"record_clip": 1.0, "record_noise": 1.2, "delta": 1e-5, "draw": "system"}
    [remark] = [remark for remark in found.remarks if "single images (DP-SGD)" in remark]
    covered, _, bare = remark.partition("does not cover")
    assert "counts of scores are not requested" in covered
    assert "numbers of images and seconds" in bare


def test_noise_that_every_site_could_take_away_is_refused(tmp_path):
    config = experiment(
        "fedavg",
        clients=2,
        per_round=2,
        subset=80,
        labels__per_class=4,
        **{**PRIVATE, "privacy__draw": "seed"},
    )
    with pytest.raises(ConfigError, match="'system'"):
        deployment(tmp_path / "f", config).config  # noqa: B018


@pytest.mark.usefixtures("quick")
def test_what_a_site_that_left_had_at_stake_is_not_forgotten(tmp_path):
    """The smallest site decides epsilon, leaves after the first round, and the server is restarted."""
    config = experiment(
        "fedavg",
        clients=3,
        per_round=3,
        rounds=3,
        subset=120,
        labels__per_class=8,
        partition__scheme="dirichlet",
        partition__alpha=0.5,
        model__name="little",
        train__batch=1,
        **PRIVATE,
    )
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    one = server(deployed, net)
    usual = one.live.round_finished

    def finished(report):
        usual(report)
        if report.number == 1:
            sizes = Enrolment.load(deployed.run, deployed.sites).counts
            members.remove_site(deployed.path, deployed.sites[min(sizes, key=lambda k: sizes[k].labelled)])
        else:
            raise KeyboardInterrupt

    one.live.round_finished = finished
    with pytest.raises(KeyboardInterrupt):
        one.run()
    with pytest.raises(ConfigError, match="--enrol-again"):
        forget_counts(deployed.run, private=True)
    server(deployed, net).run()
    enrolment = Enrolment.load(deployed.run, deployed.sites)
    assert (len(enrolment.counts), len(enrolment.left)) == (2, 1)
    account = partial(RecordPrivacy.of(config.privacy).spent, train=config.train, method=method_of(config))
    for line in Run(deployed.run).metrics:
        assert line["record_privacy"] == account(line["round"], population=enrolment.everyone())
    assert line["record_privacy"]["epsilon"] > account(3, population=enrolment.population(3))["epsilon"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux")
def test_a_federation_with_private_images_on_the_real_programs(tmp_path):
    small = {"clients": 2, "per_round": 2, "rounds": 2, "subset": 80, "labels__per_class": 4}
    config = experiment("fixmatch-gpl", **small, **PRIVATE)
    made = deployment(tmp_path / "federation", config, quorum=2)
    with loopback(made) as federation:
        federation.server()
        federation.sites()
        federation.finish(federation.run())
        for name, one in federation.started.items():
            assert "Traceback" not in one.text(), name
    lines = Run(made.run).metrics
    assert all(sorted(line["clients"]) == [0, 1] and not line["failed"] for line in lines)
    assert all(line["losses"] == {} and line["pseudo"] == {} for line in lines)
    costs = [line["record_privacy"]["epsilon"] for line in lines]
    assert 0 < costs[0] < costs[1]
    everything, _ = epsilon(1.0, 1.2, 1, 1e-5)
    assert costs[0] > everything / 10
