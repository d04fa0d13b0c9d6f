"""Fully connected networks for vectors. Images are flattened."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

from proxyfl.models.base import TrunkClassifier

UNITS = 64
"""Of a hidden layer at width 1, where no sizes are given."""
BOTTLENECK = 16
"""Of an adapter at width 1, where no size is given."""


class MLP(TrunkClassifier):
    """Fully connected layers with ReLU, for vectors: two of 64 × width, or those of model.hidden."""

    def __init__(
        self, classes: int, inputs: int, width: int = 4, hidden: tuple[int, ...] = (), dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = (inputs, *(hidden or 2 * (UNITS * width,)))
        layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for number, (before, after) in enumerate(pairwise(sizes), 1):
            layers[f"hidden{number}"] = nn.Linear(before, after)
            layers[f"relu{number}"] = nn.ReLU()
            if dropout:
                layers[f"dropout{number}"] = nn.Dropout(dropout)
        self.trunk = nn.Sequential(layers)
        self.classifier = nn.Linear(sizes[-1], classes)


class LinearModel(nn.Module):
    """One linear layer (logistic regression), for vectors."""

    def __init__(self, classes: int, inputs: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


class Adapter(nn.Module):
    """A bottleneck of 16 × width units beside its input, x + up(relu(down(x))), then a linear layer."""

    def __init__(self, classes: int, inputs: int, width: int = 4, hidden: tuple[int, ...] = ()) -> None:
        super().__init__()
        units = hidden[0] if hidden else BOTTLENECK * width
        self.down, self.up = nn.Linear(inputs, units), nn.Linear(units, inputs)
        with torch.no_grad():  # it begins as the linear layer alone
            self.up.weight.zero_()
            self.up.bias.zero_()
        self.classifier = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        change: Tensor = self.up(self.down(flat).relu())
        return flat + change

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits
