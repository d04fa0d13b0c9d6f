"""What takes the place of batch norm in any network: group norm, or batch norm with static statistics."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError

NORMS = ("batch", "group", "static")
GROUPS = 8
"""Of channels in group norm; fewer where their number is not a multiple of it."""


class GroupNorm(nn.GroupNorm):
    """Group norm that leaves images in the memory format in which convolutions are fastest, and computes in
    the other one: on a CPU that takes a third of the time.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.is_contiguous():
            return super().forward(x)
        return super().forward(x.contiguous()).contiguous(memory_format=torch.channels_last)


class StaticNorm1d(nn.BatchNorm1d):
    """Batch norm that computes with the batch in training, and leaves its statistics to the server."""

    def forward(self, x: Tensor) -> Tensor:
        return _of_the_batch(self, x) if self.training else super().forward(x)


class StaticNorm2d(nn.BatchNorm2d):
    """The same for images."""

    def forward(self, x: Tensor) -> Tensor:
        return _of_the_batch(self, x) if self.training else super().forward(x)


STATIC_NORMS = (StaticNorm1d, StaticNorm2d)


def with_norm(net: nn.Module, norm: str, name: str) -> nn.Module:
    """``net`` with its batch-norm layers changed in place; ``name`` is for the error message."""
    if norm == "batch":
        return net
    changed = 0
    for parent in list(net.modules()):
        for child, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                _change(parent, child, layer, norm, name)
                changed += 1
    if not changed:
        raise ConfigError(
            f"model '{name}' has no batch norm that model.norm = '{norm}' could replace; set it to 'batch'"
        )
    return net


def _change(
    parent: nn.Module, child: str, layer: nn.BatchNorm1d | nn.BatchNorm2d, norm: str, name: str
) -> None:
    channels = layer.num_features
    if norm == "group":
        groups = math.gcd(GROUPS, channels)
        setattr(parent, child, GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine))
    elif type(layer) is nn.BatchNorm1d and layer.track_running_stats:
        layer.__class__ = StaticNorm1d
    elif type(layer) is nn.BatchNorm2d and layer.track_running_stats:
        layer.__class__ = StaticNorm2d
    elif type(layer) not in STATIC_NORMS:  # what two places share is changed already
        raise ConfigError(
            f"model '{name}' has a custom {type(layer).__name__}, or one without statistics, which "
            "model.norm = 'static' cannot replace; use 'batch' or 'group'"
        )


def _of_the_batch(layer: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
