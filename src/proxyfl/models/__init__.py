"""Networks: a registry of names, the built-in ones, and the projection heads that add-ons hang on them."""

from __future__ import annotations

from proxyfl.models.heads import ProjectionHeads, attach_heads
from proxyfl.models.lora import LoRA, is_adapter
from proxyfl.models.norm import NORMS, STATIC_NORMS
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
from proxyfl.models.trainable import duplicate, frozen_tensors

__all__ = [
    "NORMS",
    "STATIC_NORMS",
    "ConvNorm",
    "LoRA",
    "Network",
    "ProjectionHeads",
    "ResNet",
    "attach_heads",
    "build",
    "duplicate",
    "fold_batchnorm",
    "frozen_tensors",
    "is_adapter",
    "name_of",
    "names",
    "part_of",
    "register",
    "require",
]
