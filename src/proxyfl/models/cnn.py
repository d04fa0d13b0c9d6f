"""The small convolutional network of federated averaging (McMahan et al., AISTATS 2017)."""

from __future__ import annotations

from torch import nn

from proxyfl.models.base import TrunkClassifier

HIDDEN = 512


class CNN(TrunkClassifier):
    """The CNN of FedAvg: two 5×5 convolutions and a hidden layer; features of 512."""

    def __init__(self, classes: int, channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        side = max(1, image_size // 4)
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(side),  # nothing to do for images of the size it was built for
            nn.Flatten(),
            nn.Linear(64 * side * side, HIDDEN),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(HIDDEN, classes)
