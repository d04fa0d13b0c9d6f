"""What leaves a site is observed in a dry run; what cannot be right is refused from a method's hooks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from proxyfl.core.errors import ConfigError
from proxyfl.deploy import validation
from proxyfl.deploy.explain import Explanation, dry_run, explain
from proxyfl.deploy.settings import Deployment
from proxyfl.methods import registry
from proxyfl.methods.fixmatch import FixMatch, FixMatchParameters
from toybox import every_method

BASE: dict[str, Any] = {
    "address": "localhost:8000",
    "classes": ("cat", "dog", "eel"),
    "channels": 1,
    "image_size": 8,
    "mean": (0.5,),
    "std": (0.25,),
    "sites": ("a", "b"),
    "holdout": 0.2,
}
TINY = {"preset": "digits", "federation": {"per_round": 2}, "compute": {"dtype": "fp32"}}


def deployment(
    method: str = "proxyfl", *, experiment: dict[str, Any] | None = None, **changes: Any
) -> Deployment:
    tree = {**TINY, "method": {"name": method}, **(experiment or {})}
    return Deployment(**{**BASE, **changes}, experiment=tree, path=Path("/deployment"))


def items(found: Explanation, way: str) -> dict[str, int]:
    return {item.what: item.numbers for item in getattr(found, way)}


def test_what_proxyfl_sends_is_told_to_the_number() -> None:
    found = explain(deployment())
    # ResNet-8 of width 1: 3 rows of 64 numbers and 3 biases; heads of 2 × 64 × 64 and 64.
    expected = {"weights: trunk": 77_785, "weights: classifier": 195, "weights: heads": 8_256}
    assert items(found, "up") == {**expected, "prior/counts": 3, "number of images, seconds": 2}
    assert items(found, "down") == {**expected, "prior/classes": 3}
    buffers = 77_785 + 195 + 8_256 + 3
    assert 4 * buffers <= found.bytes_down < 4 * buffers + 100  # counters of batch norm have 8 bytes
    assert {"loss/supervised", "loss/icpl", "steps"} <= set(found.metrics)
    assert found.stays == ("images, labels and file names",)


def test_a_partly_trained_network_sends_what_is_trained() -> None:
    found = explain(deployment("fedavg", experiment={"model": {"width": 1, "trainable": "head"}}))
    assert items(found, "up") == {"weights: classifier": 195, "number of images, seconds": 2}
    assert items(found, "down") == {"weights: classifier": 195}
    assert found.remarks[0].startswith("77,785 numbers (0.31 MB) of the network are not trained")


def test_sums_for_static_batch_norm_are_declared() -> None:
    found = explain(deployment("fedavg", experiment={"model": {"width": 1, "norm": "static"}}))
    sums = "sums for static batch norm: of activations and their squares"
    assert items(found, "up")[sums] == 2 * 3 * (16 + 32 + 64)
    assert items(found, "down")["the new weights once more, for these sums"] == 77_785 + 195
    assert "sums for static batch norm" in found.remarks[0]


def test_the_rehearsal_sends_what_the_guard_expects() -> None:
    task, update = dry_run(deployment())
    assert {name: value.shape for name, value in update.weights.items()} == {
        name: value.shape for name, value in task.weights.items()
    }


def test_remarks_say_what_is_revealed() -> None:
    remarks = " ".join(explain(deployment()).remarks)
    assert "classifier rows and biases" in remarks
    assert "prior/counts has an entry for every class" in remarks
    assert "label shares of the held-out images" in remarks
    assert "gpt keeps tensors of each site's update" in remarks
    for level in ("whole sites", "single images"):
        assert f"no differential privacy of {level}: not available" in remarks
    plain = explain(deployment("fixmatch-lpl")).remarks
    assert any("sees the update of every single site" in one and "only their mean" in one for one in plain)
    assert ["record_clip" in one for one in plain[-2:]] == [False, True]


def test_where_accuracy_comes_from_is_told() -> None:
    assert "3 × 3 counts" in explain(deployment()).measured
    at_server = deployment(test="/data/test.npz", holdout=0.0)
    assert "test images (/data/test.npz)" in explain(at_server).measured
    assert not [remark for remark in explain(at_server).remarks if "held-out" in remark]


def test_what_is_written_down_of_single_sites_is_told() -> None:
    noted = explain(deployment()).noted
    assert "to the mean, accuracy" in noted
    assert "nothing more is sent for this" in noted
    assert "accuracy" not in explain(deployment(test="/data/test.npz", holdout=0.0)).noted
    off = {"method": {"name": "proxyfl"}, "keep": {"clients": "none"}}
    assert explain(deployment(experiment=off)).noted.startswith(
        "nothing about individual sites: keep.clients"
    )
    private = {
        "method": {"name": "fedavg"},
        "federation": {"per_round": 2, "sampling": "poisson", "weighting": "uniform"},
        "privacy": {"clip": 0.5, "draw": "system"},
    }
    assert explain(deployment(experiment=private)).noted.endswith("differential privacy forbids it")


def test_what_stays_is_told() -> None:
    assert "fedloke: a private model" in explain(deployment("fedloke")).stays
    kept = {"method": {"name": "proxyfl", "icpl": {"keep_heads": True}}}
    found = explain(deployment(experiment=kept))
    assert "icpl: weights of heads." in found.stays
    assert "weights: heads" not in items(found, "up")


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("server", "it receives updates without noise"),
        ("site", "each update has only 1/sqrt(2) of the noise"),
    ],
)
def test_privacy_settings_are_told_with_what_they_do_not_bound(where: str, words: str) -> None:
    settings = {
        "privacy": {"clip": 1.0, "noise": 0.8, "where": where, "draw": "system"},
        "federation": {"per_round": 2, "weighting": "uniform"},
    }
    found = explain(deployment("fixmatch-lpl", experiment=settings))
    assert (found.privacy["clip"], found.privacy["noise"]) == (1.0, 0.8)
    assert words in found.remarks[-2]
    assert "does not cover numbers of images" in found.remarks[-1]
    assert "nor losses" in found.remarks[-1]
    assert explain(deployment("fixmatch-lpl")).privacy == {}


@pytest.mark.parametrize("name", every_method())
def test_every_method_is_explained_or_refused(name: str) -> None:
    asked = deployment(name)
    if registry.create(name).oracle:
        with pytest.raises(ConfigError, match="which no site has"):
            explain(asked)
        return
    found = explain(asked)
    assert found.bytes_up > 0
    assert {"weights: trunk", "weights: classifier"} <= {*items(found, "up")}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("proxyfl", "gpt keeps tensors of each site's update"),
        ("feddb", "feddb weighs sites by what they sent"),
        ("fedmatch", "fedmatch sends each site something of its own"),
        ("sage+proto", "proto keeps tensors of each site's update"),
    ],
)
def test_secure_aggregation_is_refused_with_the_methods_reason(name: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        _ = deployment(name, secure_aggregation=True).config
    assert "secure aggregation is not offered" in str(error.value)
    assert reason in str(error.value)


def test_secure_aggregation_is_refused_whatever_the_method_and_place() -> None:
    for asked in (
        deployment("sage", secure_aggregation=True),
        deployment("sage", experiment={"federation": {"per_round": 2, "secure_aggregation": True}}),
    ):
        with pytest.raises(ConfigError, match="Flower") as error:
            _ = asked.config
        assert "could not use it either" not in str(error.value)
    assert dataclasses.replace(deployment("sage"), secure_aggregation=False).config.method.name == "sage"


class Nosy(FixMatch):
    """A method of somebody else's that looks at single updates."""

    name = "nosy"

    def receive(self, update: Any) -> Any:
        return {"row": update.weights["classifier.weight"][0]}


def test_reasons_come_from_hooks_and_not_from_names() -> None:
    assert validation.reads_single_sites(Nosy(FixMatchParameters())) == [
        "nosy keeps tensors of each site's update"
    ]
    assert validation.reads_single_sites(FixMatch(FixMatchParameters())) == []


def test_with_labels_at_the_server_a_site_has_none_and_measures_nothing() -> None:
    labels = {"labels": {"where": "server"}, "model": {"width": 1, "norm": "static"}}
    found = explain(deployment("semifl", experiment=labels, server_data="/labelled"))
    assert found.labels.startswith("All labels are at the server (/labelled)")
    assert found.measured.startswith("on the 20% of its labelled images")
    assert items(found, "up")["semifl/fix"] == 1
    assert {"loss/unlabelled", "loss/mix"} <= set(found.metrics)
    assert not any("confusion matrix" in remark for remark in found.remarks)
    assert any("numbers of images reveal" in remark for remark in found.remarks)
