"""ResNet-18 (He et al., CVPR 2016), with a small stem for small images."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from proxyfl.models.base import TrunkClassifier
from proxyfl.models.layout import SpatialMean
from proxyfl.models.resnet import Block, ConvNorm

CHANNELS = (64, 128, 256, 512)
LARGE = 64
"""Pixels along a side from which images get ImageNet's stem."""


class ResNet18(TrunkClassifier):
    """ResNet-18: a 3×3 stem, from 64 pixels on a 7×7 one with max pooling; features of 512."""

    def __init__(self, classes: int, channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if image_size < LARGE:
            layers |= {"stem": ConvNorm(channels, CHANNELS[0], 3), "relu": nn.ReLU(inplace=True)}
        else:
            layers |= {"stem": ConvNorm(channels, CHANNELS[0], 7, stride=2), "relu": nn.ReLU(inplace=True)}
            layers |= {"shrink": nn.MaxPool2d(3, stride=2, padding=1)}
        inputs = CHANNELS[0]
        for number, outputs in enumerate(CHANNELS, 1):
            first = Block(inputs, outputs, stride=1 if number == 1 else 2)
            layers[f"stage{number}"] = nn.Sequential(first, Block(outputs, outputs, stride=1))
            inputs = outputs
        layers["pool"] = SpatialMean()
        self.trunk = nn.Sequential(layers)
        self.classifier = nn.Linear(inputs, classes)
