"""Momentum that lasts from round to round (``train.keep_momentum``), of clients and of the server."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import proxyfl
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Tensors, namespace
from proxyfl.federation.client import MOMENTUM
from proxyfl.methods.context import OWN_MOMENTUM
from toybox import Stopped, Told, little_config, same_bits, same_state


def clouds(where: str, method: str, **train: Any) -> proxyfl.Federation:
    """Points around three corners of a cube; a round of a client or of the server is one step."""
    labels = torch.arange(96) % 3
    vectors = torch.randn(96, 5, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(5)[labels]
    data = proxyfl.Dataset.of(vectors[:72], labels[:72], test=(vectors[72:], labels[72:]))
    split = proxyfl.partition(data, clients=1, per_class=8, scheme="iid", where=where)
    return proxyfl.Federation(
        data, split, method=method, per_round=1, rounds=3, workers=0, dtype="fp32", network="linear",
        train=proxyfl.Train(epochs=1, batch=72, lr=0.1, momentum=0.9, weight_decay=0.0, **train),
    )  # fmt: skip


HOMES = {"clients": ("clients", "fedavg"), "server": ("server", "server-only")}


def weights_of(federation: proxyfl.Federation) -> list[Tensors]:
    """Before the first round and after each."""
    return [federation.state.weights, *(report.state.weights for report in federation.rounds())]


def kept_by(who: str, federation: proxyfl.Federation) -> Tensors:
    state = federation.state
    if who == "server":
        return namespace(state.extras, OWN_MOMENTUM)
    return namespace(federation.trainer.store.load(0, state.versions.get(0, 0)), MOMENTUM)


@pytest.mark.parametrize("who", HOMES)
def test_training_goes_on_with_the_momentum_of_the_last_round(who: str) -> None:
    """One step w' = w - lr v a round: so v is seen, and v less 0.9 of the one before is the gradient."""
    made, plain = clouds(*HOMES[who], keep_momentum=who), clouds(*HOMES[who])
    kept, usual = weights_of(made), weights_of(plain)
    assert same_bits(kept[1], usual[1])  # nothing to go on with yet
    steps = [
        (before["classifier.weight"] - after["classifier.weight"]) / 0.1 for before, after in pairwise(kept)
    ]
    gradient = (usual[1]["classifier.weight"] - usual[2]["classifier.weight"]) / 0.1
    torch.testing.assert_close(steps[1], 0.9 * steps[0] + gradient, atol=1e-5, rtol=1e-4)
    held = kept_by(who, made)
    assert held.keys() == {"classifier.weight", "classifier.bias"}
    torch.testing.assert_close(held["classifier.weight"], steps[2], atol=1e-5, rtol=1e-4)
    assert kept_by(who, plain) == {}


@pytest.mark.parametrize("who", HOMES)
def test_a_run_that_goes_on_has_the_same_momentum(who: str, tmp_path: Path) -> None:
    whole, cut, again = (clouds(*HOMES[who], keep_momentum=who) for _ in range(3))
    with pytest.raises(Stopped):
        cut.record(tmp_path / "cut").run([Told(stop_after=1)])
    again.resume(tmp_path / "cut").run()
    assert same_state(whole.run().state, again.state)
    assert same_bits(kept_by(who, whole), kept_by(who, again))


@pytest.mark.parametrize(
    ("method", "changes", "fault"),
    [
        ("fedavg", {"optimiser": "adamw", "keep_momentum": "clients"}, "momentum of SGD"),
        ("fedavg", {"leak_momentum": True, "keep_momentum": "clients"}, "leak_momentum = false"),
        ("fedavg", {"keep_momentum": "server"}, "labels.where = 'server'"),
        ("fedmatch", {"keep_momentum": "clients"}, "leave train.keep_momentum"),
    ],
)
def test_what_cannot_be_meant_is_refused(method: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        little_config(method, **{f"train__{name}": value for name, value in changes.items()})


@pytest.mark.parametrize(
    ("method", "kept"), [("semifl", "all"), ("flfl", "server"), ("rscfed", "clients"), ("cbafed", "clients")]
)
def test_own_protocols_keep_what_their_releases_keep(method: str, kept: str) -> None:
    assert proxyfl.Experiment(method, protocol="own").config.train.keep_momentum == kept
