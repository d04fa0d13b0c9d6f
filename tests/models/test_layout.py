"""Layers that are written for speed give what their usual form gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from proxyfl.models.layout import SpatialMean, every

FORMATS = [torch.channels_last, torch.contiguous_format]


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_mean_is_that_of_pooling_and_its_gradient_lies_as_images_do(dtype, memory_format):
    x = torch.randn(6, 16, 4, 4, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
    usual = nn.AdaptiveAvgPool2d(1)(x).flatten(1)
    mean = SpatialMean()(x)
    assert torch.equal(mean, usual)
    weights = torch.randn_like(mean)
    (wanted,) = torch.autograd.grad((usual * weights).sum(), x)
    (found,) = torch.autograd.grad((mean * weights).sum(), x)
    assert torch.equal(found, wanted)
    inner, seen = x.detach().requires_grad_(), []
    inner.register_hook(lambda gradient: seen.append(gradient.is_contiguous(memory_format=memory_format)))
    SpatialMean()(inner).sum().backward()
    assert seen == [True]


@pytest.mark.parametrize("size", [4, 5, 8])
@pytest.mark.parametrize("memory_format", FORMATS)
def test_a_convolution_of_every_other_pixel_is_one_with_stride(size, memory_format):
    x = torch.randn(3, 16, size, size, dtype=torch.float64).contiguous(memory_format=memory_format)
    x.requires_grad_()
    weight = torch.randn(32, 16, 1, 1, dtype=torch.float64, requires_grad=True)
    usual, thinned = F.conv2d(x, weight, stride=2), F.conv2d(every(x, 2), weight)
    assert every(x, 1) is x
    torch.testing.assert_close(thinned, usual)
    ways = [torch.autograd.grad((y * y).sum(), (x, weight)) for y in (usual, thinned)]
    torch.testing.assert_close(*ways)
