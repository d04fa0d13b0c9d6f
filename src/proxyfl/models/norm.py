"""What takes the place of batch norm in any network: group norm, or batch norm with static statistics."""

from __future__ import annotations

import math

from torch import nn

from proxyfl.core.errors import ConfigError

NORMS = ("batch", "group")
GROUPS = 8
"""Of channels in group norm; fewer where their number is not a multiple of it."""


def with_norm(net: nn.Module, norm: str, name: str) -> nn.Module:
    """``net`` with its batch-norm layers changed in place; ``name`` is for the error message."""
    if norm == "batch":
        return net
    changed = 0
    for parent in list(net.modules()):
        for child, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                setattr(parent, child, _group_norm(layer))
                changed += 1
    if not changed:
        raise ConfigError(
            f"model '{name}' has no batch norm that model.norm = '{norm}' could replace; set it to 'batch'"
        )
    return net


def _group_norm(layer: nn.BatchNorm2d) -> nn.GroupNorm:
    groups = math.gcd(GROUPS, layer.num_features)
    return nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
