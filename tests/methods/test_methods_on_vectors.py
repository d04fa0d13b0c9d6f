"""Every registered method trains on vectors, with the network that is chosen for them."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

import proxyfl
from proxyfl.methods import registry
from toybox import every_method


@cache
def drawn() -> tuple[proxyfl.Dataset, proxyfl.Partition]:
    """Three clouds of points around the corners of a cube."""
    random = np.random.default_rng(0)
    labels = np.arange(90) % 3
    vectors = random.normal(size=(90, 5)) + 3 * np.eye(5)[labels]
    data = proxyfl.Dataset.of(vectors[:60], labels[:60], test=(vectors[60:], labels[60:]))
    return data, proxyfl.partition(data, clients=2, per_class=6, scheme="iid")


def method_of(name: str) -> proxyfl.Method:
    _, parameters = registry.resolve(name, {})
    changed = {"tau": 0.4} if "tau" in parameters else {}
    return registry.create(name, {**changed, **({"gpt": {"epochs": 2}} if "gpt" in parameters else {})})


@pytest.mark.parametrize("name", every_method())
def test_the_method_trains_on_vectors(name):
    data, split = drawn()
    train = proxyfl.Train(epochs=2, batch=8, lr=0.1)
    federation = proxyfl.Federation(
        data, split, method=method_of(name), width=1, rounds=2, train=train, workers=0, dtype="fp32"
    )
    assert federation.config.model.name == "mlp"
    before = {key: value.clone() for key, value in federation.state.weights.items()}
    *_, report = federation.rounds()
    assert report.clients == [0, 1]
    assert all(math.isfinite(loss) for loss in report.losses.values())
    after = federation.state.weights
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert (report.accuracy or 0) > 0.4  # chance is a third
