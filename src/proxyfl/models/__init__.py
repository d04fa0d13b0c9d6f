"""Networks: a registry of names, ResNet-8, and the projection heads that add-ons hang on them."""

from __future__ import annotations

from proxyfl.models.heads import ProjectionHeads, attach_heads
from proxyfl.models.registry import (
    ModelInfo,
    Network,
    build,
    describe,
    name_of,
    part_of,
    register,
    require,
)
from proxyfl.models.resnet import ConvNorm, ResNet, fold_batchnorm

__all__ = [
    "ConvNorm",
    "ModelInfo",
    "Network",
    "ProjectionHeads",
    "ResNet",
    "attach_heads",
    "build",
    "describe",
    "fold_batchnorm",
    "name_of",
    "part_of",
    "register",
    "require",
]
