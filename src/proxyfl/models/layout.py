"""What is slow in its usual form on images in channels-last memory: the same numbers, with gradients in the
memory format of the images.
"""

from __future__ import annotations

from torch import Tensor, nn


class SpatialMean(nn.Module):
    """The mean over all pixels, (N, C, H, W) → (N, C). The gradient of torch's pooling lies in the other
    memory format, so that the next layer's backward pass takes ten times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).mean((1, 2))


def every(x: Tensor, step: int) -> Tensor:
    """Every ``step``-th pixel of every ``step``-th row: what a 1×1 convolution with that stride looks at.
    This and one without stride take less time, most of all in the backward pass.
    """
    return x if step == 1 else x.permute(0, 2, 3, 1)[:, ::step, ::step].permute(0, 3, 1, 2)
