"""Differential privacy of single images in a real federation: what is asked for, sent and accounted."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")
pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")

from loopback import deployment, experiment, loopback

from proxyfl.aggregation.accountant import epsilon
from proxyfl.core.errors import ConfigError
from proxyfl.deploy.explain import explain
from proxyfl.runs.run import Run

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
    assert any("single images (DP-SGD)" in remark and "does not cover" in remark for remark in found.remarks)


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
