"""Your own tensors and your own network, without a name, a file or a folder.

python examples/own_network.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import proxyfl
from proxyfl.methods import ProxyFL


class SmallNet(nn.Module):
    """Any network that gives logits. ``features`` and ``classifier`` are what ProxyFL's proxies need."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        )  # fmt: skip
        self.classifier = nn.Linear(64, classes)

    def features(self, images: Tensor) -> Tensor:
        return self.trunk(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def main(rounds: int = 5, workers: int | None = None) -> None:
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    labels = torch.tensor(digits.target)
    data = proxyfl.Dataset.of(images[:1500], labels[:1500], test=(images[1500:], labels[1500:]))
    split = proxyfl.partition(data, clients=10, per_class=10, scheme="dirichlet", alpha=0.5)
    federation = proxyfl.Federation(
        data, split, network=SmallNet, method=ProxyFL(tau=0.9), rounds=rounds, per_round=5, seed=3,
        train=proxyfl.Train(epochs=2, batch=16, lr=0.05, schedule="cosine"), workers=workers,
    )  # fmt: skip
    for report in federation.rounds():
        print(f"round {report.number}: {report.accuracy:.1%} of the test images are right")
    print(f"a network to go on with: {type(federation.model()).__name__}")


if __name__ == "__main__":
    main()
