"""Losses on unlabelled images: pure functions of tensors, in float32."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor, over: str = "batch") -> Tensor:
    """Sum of the masked values over the number of all (``batch``) or of the masked ones (``selected``)."""
    total = (values * mask).sum()
    return total / max(1, len(values)) if over == "batch" else total / mask.sum().clamp(min=1)


def masked_cross_entropy(logits: Tensor, label: Tensor, mask: Tensor, over: str = "batch") -> Tensor:
    """Cross entropy against hard pseudo-labels where ``mask`` is true."""
    return masked_mean(F.cross_entropy(logits, label, reduction="none"), mask, over)


def masked_divergence(
    logits: Tensor, target: Tensor, mask: Tensor, over: str = "batch", smoothing: float = 1e-10
) -> Tensor:
    """KL(target + s || prediction + s) where ``mask`` is true; s bounds it for one-hot targets."""
    target = target + smoothing
    prediction = logits.softmax(1) + smoothing
    divergence = (target * (target.log() - prediction.log())).sum(1)
    return masked_mean(divergence, mask, over)
