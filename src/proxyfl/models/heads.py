"""Projection heads: two linear maps that bring features and proxies into one space. Not used to predict."""

from __future__ import annotations

from torch import Tensor, nn

from proxyfl.core.errors import MethodError


class ProjectionHeads(nn.Module):
    """``feature`` (F, with a bias) maps features, ``proxy`` (R, without) classifier rows; both d → d."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.feature = nn.Linear(dim, dim)
        self.proxy = nn.Linear(dim, dim, bias=False)

    def forward(self, features: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
        return self.feature(features), self.proxy(proxies)


def attach_heads(net: nn.Module, name: str) -> nn.Module:
    """Give ``net`` a ``heads`` of the width of its classifier; ``name`` is for the error message."""
    classifier = getattr(net, "classifier", None)
    if not isinstance(classifier, nn.Linear):
        raise MethodError(f"model '{name}' cannot carry projection heads: give it classifier, an nn.Linear")
    if not callable(getattr(net, "features", None)):
        raise MethodError(
            f"model '{name}' cannot carry projection heads: give it features(x), "
            f"the (N, {classifier.in_features}) input of its classifier"
        )
    if hasattr(net, "heads"):
        raise MethodError(f"model '{name}' already has an attribute called heads; rename it")
    net.heads = ProjectionHeads(classifier.in_features)
    return net
