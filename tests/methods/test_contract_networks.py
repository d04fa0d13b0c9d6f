"""Every registered method on networks of every kind: it trains; on vectors and features the same seed gives
the same bits, of which labels that it may not know change none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import proxyfl
from proxyfl.data.dataset import Split
from proxyfl.methods import registry
from toybox import every_method, same_bits


class Quarters(nn.Module):
    """An encoder: means over the quarters of an image."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


@cache
def images() -> proxyfl.Dataset:
    """Three classes, one with a bright quarter each."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(30) % 3
    pixels = torch.rand((30, 1, 8, 8), generator=generator) / 3
    for row, label in enumerate(labels.tolist()):
        pixels[row, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 0.6
    return proxyfl.Dataset.of(pixels[:24], labels[:24], test=(pixels[24:], labels[24:]))


NETWORKS = ("mlp", "resnet8", "wrn-16-1", "linear")
"""On vectors, on images, and the last on features of a frozen encoder."""


@cache
def vectors() -> proxyfl.Dataset:
    train, test = (split.images.float().flatten(1) for split in (images().train, images().test))
    return proxyfl.Dataset.of(train, images().train.labels, test=(test, images().test.labels))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], proxyfl.Dataset]:
    folder: Path = tmp_path_factory.mktemp("features")

    def found(network: str) -> proxyfl.Dataset:
        if network == "linear":
            return proxyfl.encode(images(), Quarters(), cache=folder)
        return vectors() if network == "mlp" else images()

    return found


def method_of(name: str) -> proxyfl.Method:
    _, parameters = registry.resolve(name, {})
    changed = {"tau": 0.4} if "tau" in parameters else {}
    return registry.create(name, {**changed, **({"gpt": {"epochs": 2}} if "gpt" in parameters else {})})


def played(data: proxyfl.Dataset, split: proxyfl.Partition, name: str, network: str) -> proxyfl.Federation:
    train = proxyfl.Train(epochs=1, batch=8, lr=0.1)
    made = proxyfl.Federation(
        data, split, method=method_of(name), network=network, width=1, rounds=1, train=train, workers=0,
        dtype="fp32",
    )  # fmt: skip
    return made.run()


def renamed(data: proxyfl.Dataset, split: proxyfl.Partition) -> proxyfl.Dataset:
    """The same samples, with other labels where clients have none."""
    hidden = torch.from_numpy(split.unlabelled.values)
    labels = data.train.labels.clone()
    labels[hidden] = (labels[hidden] + 1) % len(data.classes)
    return dataclasses.replace(data, train=Split(data.train.images, labels))


@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param(*each.values, network, marks=each.marks)
        for each in every_method()
        for network in NETWORKS
    ],
)
def test_a_method_keeps_its_promises_on_a_network(name, network, data):
    known = data(network)
    split = proxyfl.partition(known, clients=2, per_class=2, scheme="iid")
    made = played(known, split, name, network)
    (report,) = made.history
    assert report.clients == [0, 1]
    assert all(map(math.isfinite, report.losses.values()))
    start = made.server.start(made.trainer.initial_weights()).weights
    assert not same_bits(start, made.state.weights)
    if known.is_vectors:  # for images, ``test_contract.py`` has asked this
        oracle = made.method.oracle
        again = played(known if oracle else renamed(known, split), split, name, network)
        assert same_bits(again.state.to_tensors(), made.state.to_tensors())
