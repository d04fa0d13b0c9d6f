"""Networks: a registry of names, the built-in ones, and the projection heads that add-ons hang on them."""

from __future__ import annotations

from proxyfl.models.heads import ProjectionHeads, attach_heads
from proxyfl.models.norm import NORMS
from proxyfl.models.registry import (
    Network,
    build,
    name_of,
    names,
    part_of,
    register,
    require,
)
from proxyfl.models.resnet import ConvNorm, ResNet, fold_batchnorm

__all__ = [
    "NORMS",
    "ConvNorm",
    "Network",
    "ProjectionHeads",
    "ResNet",
    "attach_heads",
    "build",
    "fold_batchnorm",
    "name_of",
    "names",
    "part_of",
    "register",
    "require",
]
