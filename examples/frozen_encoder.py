"""A frozen encoder: trained on the digits 0 to 4, it computes features of 5 to 9, which have few labels.

python examples/frozen_encoder.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import proxyfl


class Features(nn.Module):
    """What a trained network's classifier is given. Any nn.Module that gives vectors is an encoder."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.features(images)


def digits(first: int) -> proxyfl.Dataset:
    """Five of the ten digits."""
    data, parts = proxyfl.load_dataset("digits"), []
    for split in (data.train, data.test):
        chosen = (split.labels >= first) & (split.labels < first + 5)
        parts.append((split.images[chosen], split.labels[chosen] - first))
    return proxyfl.Dataset.of(*parts[0], test=parts[1])


def trained(data: proxyfl.Dataset, method: str, labels: int, rounds: int, **more: Any) -> proxyfl.Federation:
    split = proxyfl.partition(data, clients=8, per_class=labels, scheme="iid")
    train, start = proxyfl.Train(epochs=2, batch=16, lr=0.05), time.perf_counter()
    made = proxyfl.Federation(data, split, method=method, rounds=rounds, train=train, width=1, **more).run()
    each = (time.perf_counter() - start) / rounds
    print(f"{made.config.model.name:8}{made.history[-1].accuracy:7.1%}{each:7.2f} s per round")
    return made


def main(folder: Path, rounds: int = 20, workers: int | None = None) -> None:
    before, images = digits(0), digits(5)
    source = trained(before, "fedavg", 60, rounds, workers=workers)
    encoder = proxyfl.Encoder(Features(source.model()), mean=before.mean, std=before.std)
    features = proxyfl.encode(images, encoder, weak=2, strong=2, cache=folder)
    trained(images, "fixmatch-gpl", 4, rounds, workers=workers)
    for head in ("linear", "adapter", "mlp"):
        trained(features, "fixmatch-gpl", 4, rounds, network=head, workers=workers)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
