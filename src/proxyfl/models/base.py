"""What most networks here share: a trunk that makes features and a linear layer that classifies them."""

from __future__ import annotations

from torch import Tensor, nn


class TrunkClassifier(nn.Module):
    """Logits from the features of ``trunk`` by ``classifier``; a subclass makes both."""

    trunk: nn.Module
    classifier: nn.Linear

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.trunk(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits
