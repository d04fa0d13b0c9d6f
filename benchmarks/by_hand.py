"""Batch norm and ReLU as one function with passes of its own over channels-last memory: is it faster?

For ``small_step.py``. Neighbouring pixels are taken together, so that every pass has long rows: with few
channels, torch's own kernel for the statistics is several times slower than that for the scaling.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.models.layout import every
from proxyfl.models.resnet import Block, ConvNorm, ResNet

ROW = 256
"""Numbers that a pass takes at once, at least."""


class NormRelu(torch.autograd.Function):
    """relu(batch norm(x)), with the running statistics brought up to date."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        channels, count = x.shape[1], x.numel() // x.shape[1]
        together = next(k for k in (ROW // channels, 1) if count % k == 0)
        rows = x.permute(0, 2, 3, 1).reshape(-1, together * channels)
        ones = x.new_ones(rows.shape[1])
        mean = rows.sum(0).view(together, channels).sum(0) / count
        long = mean.repeat(together)
        # The gradient of a weight is what a sum of squares needs: sum of x (x - mean), in one pass.
        _, squares, _ = torch.ops.aten.native_batch_norm_backward(
            rows, rows, ones, None, None, long, ones, True, norm.eps, [False, True, False]
        )
        variance = squares.view(together, channels).sum(0) / count
        result, nothing = torch.empty_like(x), x.new_empty(0)
        torch.ops.aten.native_batch_norm.out(
            rows, weight.repeat(together), bias.repeat(together), long, variance.repeat(together), False, 0.0,
            norm.eps, out=result.permute(0, 2, 3, 1).view_as(rows), save_mean=nothing, save_invstd=nothing,
        )  # fmt: skip
        result.relu_()
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * count / (count - 1), norm.momentum)
        ctx.save_for_backward(x, weight, mean, (variance + norm.eps).rsqrt(), result)
        ctx.eps = norm.eps
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, result = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradient, result, 0)
        found = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, scale, True, ctx.eps, [True, True, True]
        )
        return *found, None


class ByHand(nn.Module):
    """A convolution and its norm, and the ReLU that follows."""

    def __init__(self, plain: ConvNorm) -> None:
        super().__init__()
        self.conv, self.norm = plain.conv, plain.norm

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = NormRelu.apply(self.conv(x), self.norm.weight, self.norm.bias, self.norm)
        return result


def by_hand(network: ResNet) -> ResNet:
    """The network with every norm that a ReLU follows at once computed so, in place."""
    trunk = network.trunk
    trunk.stem, trunk.relu = ByHand(trunk.stem), nn.Identity()
    for block in trunk.modules():
        if isinstance(block, Block):
            block.first = ByHand(block.first)
            block.forward = partial(_forward, block)
    return network


def _forward(block: Block, x: Tensor) -> Tensor:
    hidden: Tensor = block.second(block.first(x))
    hidden += block.skip(every(x, block.stride))
    return F.relu(hidden, inplace=True)
