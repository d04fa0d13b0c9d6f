"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016), by name: ``wrn-28-2``, ``wrn-16-1``, …"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError
from proxyfl.models.base import TrunkClassifier
from proxyfl.models.layout import SpatialMean, every
from proxyfl.models.resnet import STAGES

NAME = re.compile(r"wrn-(\d{1,3})-(\d{1,2})")


class PreBlock(nn.Module):
    """Norm, ReLU and 3×3 convolution, twice, beside a skip connection. Where sizes change, the skip starts
    behind the first ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, outputs, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), _conv(outputs, outputs, 3)
        self.skip = None if inputs == outputs and stride == 1 else _conv(inputs, outputs, 1)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        # In place: no backward pass needs what a norm or an addition gave, only what went into it.
        active = F.relu(self.norm1(x), inplace=True)
        hidden: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active)), inplace=True))
        hidden += x if self.skip is None else self.skip(every(active, self.stride))
        return hidden


class WideResNet(TrunkClassifier):
    """A wide residual network, wrn-D-K: D layers deep, K times as wide; features of 64 × K."""

    def __init__(self, depth: int, widen: int, classes: int, channels: int = 3) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_conv(channels, STAGES[0], 3))
        inputs = STAGES[0]
        for number, outputs in enumerate((widen * stage for stage in STAGES), 1):
            strides = [1 if number == 1 else 2] + [1] * (blocks - 1)
            sizes = [inputs] + [outputs] * (blocks - 1)
            stage = [PreBlock(size, outputs, stride) for size, stride in zip(sizes, strides, strict=True)]
            layers[f"stage{number}"] = nn.Sequential(*stage)
            inputs = outputs
        layers |= {"norm": nn.BatchNorm2d(inputs), "relu": nn.ReLU(inplace=True)}
        layers["pool"] = SpatialMean()
        self.trunk = nn.Sequential(layers)
        self.classifier = nn.Linear(inputs, classes)


def wide_resnet(name: str) -> Callable[..., nn.Module] | None:
    """The factory that a name such as ``wrn-28-2`` stands for; None where it is no such name."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    depth, widen = int(found[1]), int(found[2])
    if depth < 10 or depth % 6 != 4 or not widen:
        raise ConfigError(
            f"model '{name}' does not exist: in wrn-D-K the depth D is 6 n + 4 (10, "
            "16, 22, 28, 40, …) and the width K at least 1"
        )
    return partial(WideResNet, depth, widen)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
