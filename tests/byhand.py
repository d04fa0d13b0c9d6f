"""Steps of the toy client by hand: NumPy in float64, with gradients written out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from proxyfl.data.stream import Batch
from proxyfl.methods.context import ClientContext
from toyclient import logits_of, softmax

PLAIN = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
Weights = list[np.ndarray]


def drawn(count: int, seed: int) -> Tensor:
    return torch.randn(count, 1, 3, 3, generator=torch.Generator().manual_seed(seed))


def gradients(weights: Weights, images: Tensor, upstream: np.ndarray) -> Weights:
    """Of map, rows and bias, where ``upstream`` is the gradient of the logits."""
    mix, rows, _ = weights
    pixels = images.double().flatten(1).numpy()
    features = np.tanh(pixels @ mix)
    inner = (upstream @ rows) * (1 - features**2)
    return [pixels.T @ inner, upstream.T @ features, upstream.sum(0)]


def of_cross_entropy(
    weights: Weights, images: Tensor, labels: Sequence[int], counted: Sequence[bool]
) -> Weights:
    """Gradients of the mean cross entropy over the images that count."""
    upstream = softmax(logits_of(weights, images))
    upstream[np.arange(len(labels)), labels] -= 1
    return gradients(weights, images, upstream * np.array(counted)[:, None] / max(1, sum(counted)))


def unlabelled(index: Sequence[int], *, weak: Tensor | None = None, strong: Tensor | None = None) -> Batch:
    none = torch.zeros(0, 1, 3, 3)
    views = (none if weak is None else weak, none if strong is None else strong)
    return Batch(none, torch.zeros(0, dtype=torch.int64), none, *views, torch.tensor(index))


def take(ctx: ClientContext, batch: Batch) -> None:
    """A step as a client takes it."""
    outputs = ctx.method.step(batch, ctx)
    ctx.method.observe_all(outputs, ctx)


def close(found: Weights, expected: Weights, tolerance: float = 2e-6) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
