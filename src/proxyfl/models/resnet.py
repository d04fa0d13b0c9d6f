"""ResNet-8 with a width factor, and a network frozen with its batch norm folded away."""

from __future__ import annotations

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from proxyfl.models.base import TrunkClassifier
from proxyfl.models.layout import SpatialMean, every
from proxyfl.models.lora import merge

STAGES = (16, 32, 64)
"""Channels of the three stages at width 1."""


class ConvNorm(nn.Sequential):
    """A convolution without bias and its batch norm; ``fold_batchnorm`` makes them one convolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")  # N(0, 2 / (k·k·outputs))
        super().__init__(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs)))


class Block(nn.Module):
    """Two 3×3 convolutions beside a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride)
        self.second = ConvNorm(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.skip: nn.Module = nn.Identity() if same else ConvNorm(inputs, outputs, 1)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        # In place: no backward pass needs what a norm or an addition gave, only what went into it.
        hidden = self.second(F.relu(self.first(x), inplace=True))
        hidden += self.skip(every(x, self.stride))
        return F.relu(hidden, inplace=True)


class ResNet(TrunkClassifier):
    """A stem and three stages of one block each; features of 64 × width, for images of 8×8 and up."""

    def __init__(self, classes: int, channels: int = 3, width: int = 4) -> None:
        super().__init__()
        small, middle, large = (width * stage for stage in STAGES)
        self.trunk = nn.Sequential(
            OrderedDict(
                stem=ConvNorm(channels, small, 3),
                relu=nn.ReLU(inplace=True),
                stage1=Block(small, small, stride=1),
                stage2=Block(small, middle, stride=2),
                stage3=Block(middle, large, stride=2),
                pool=SpatialMean(),
            )
        )
        self.classifier = nn.Linear(large, classes)


def fold_batchnorm(net: nn.Module) -> nn.Module:
    """``net`` frozen and in evaluation mode, in place; faster where it is built of ``ConvNorm``.
    Adapters become part of the weights.

    Other layers stay as they are: only ``ConvNorm`` promises that nothing looks between its two parts.
    """
    merge(net).eval().requires_grad_(False)
    for module in net.modules():
        if not isinstance(module, ConvNorm):
            continue
        conv, norm = module
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            module.conv = fuse_conv_bn_eval(conv, norm).requires_grad_(False)
            module.norm = nn.Identity()
    return net
