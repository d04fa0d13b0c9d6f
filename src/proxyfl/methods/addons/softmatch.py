"""SoftMatch (Chen et al., ICLR 2023) as a mask for FixMatch and its kin: images are trusted by degrees.

No image is thrown away. One whose confidence is above the average counts fully, one below it the less, the
further below. Confidences are of predictions that were divided by the average prediction first, so that no
class is favoured; p is the prediction on the weak view that named the label yhat::

    ptilde <- ema ptilde + (1 - ema) mean_i p_i             (starts as the first batch's mean)
    q_i     = p_i / ptilde, normalised
    mu     <- ema mu + (1 - ema) mean_i max q_i             sigma^2 <- the same of the unbiased variance
    w_i     = exp(-min(max q_i - mu, 0)^2 / (2 sigma^2 / sigmas^2))
    Lu      = mean_i w_i H(yhat_i, p(strong u_i))           mu starts at 1 / C, sigma^2 at 1

The label is that of p, not of q, and all averages move before they weigh. With other parents than FixMatch
the weight multiplies their loss of each image. Add-ons and metrics ask which images are sure: those of weight
1, or with ``sure = "parent"`` those that the parent would have trusted.

By default the averages are those of the global model's predictions on the client's whole pool
(``statistics``, see ``averages.py``).

Deviations: the federated setting. The variance of a single image counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors
from proxyfl.methods.addons.averages import AverageParameters, Averages
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.registry import register_addon

SMALLEST = 1e-12


@dataclass(frozen=True)
class SoftMatchParameters(AverageParameters):
    """Parameters of SoftMatch."""

    sigmas: float = setting(
        2.0, "how steeply weights fall below the mean (n_sigma); 0: every image has full weight", low=0
    )
    align: bool = setting(True, "divide predictions by the average prediction before they are weighted")
    sure: str = setting(
        "full",
        "images that add-ons and metrics treat as confident: those of weight 1, or "
        "those that the parent accepts",
        choices=("full", "parent"),
    )


@register_addon
class SoftMatch(Averages):
    name = "softmatch"
    wants = frozenset({"u_weak"})
    Parameters = SoftMatchParameters

    averaged: ClassVar[str] = "its average prediction, and mean and variance of its confidence"

    def first(self, classes: int) -> Tensors:
        return {"average": torch.zeros(classes), "moments": torch.tensor([1 / classes, 1.0])}

    def measured(self, rows: Tensor) -> Tensors:
        average = rows.mean(0)
        return {"average": average, "moments": moments(self._lifted(rows, average).amax(1))}

    def weigh(self, pseudo: Pseudo, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        scores, ema = pseudo.named_by(outputs), self.parameters.ema
        held: Tensors = ctx.memory[self.name]
        if self.keeps:
            seen, old = scores.mean(0), held["average"]
            held["average"] = torch.where(old.sum() > 0, seen.lerp(old, ema), seen)
        confidence = self._lifted(scores, held["average"]).amax(1)
        if self.keeps:
            held["moments"] = moments(confidence).lerp(held["moments"], ema)
        mean, variance = held["moments"].unbind()
        weight = soft_weight(confidence, mean, variance, self.parameters.sigmas)
        mask = weight == 1 if self.parameters.sure == "full" else pseudo.mask
        return replace(pseudo, mask=mask, weight=weight)

    def _lifted(self, rows: Tensor, average: Tensor) -> Tensor:
        return aligned(rows, average) if self.parameters.align else rows


def aligned(rows: Tensor, average: Tensor) -> Tensor:
    """q: predictions over the average prediction, each row's sum made one."""
    lifted = rows / average.clamp(min=SMALLEST)
    return lifted / lifted.sum(1, keepdim=True)


def moments(confidence: Tensor) -> Tensor:
    """Mean and unbiased variance; that of a single value is zero."""
    spread = confidence.var() if len(confidence) > 1 else torch.zeros_like(confidence[0])
    return torch.stack([confidence.mean(), spread])


def soft_weight(confidence: Tensor, mean: Tensor, variance: Tensor, sigmas: float) -> Tensor:
    """w: 1 from the mean on, below it half a Gaussian of the variance over sigmas squared."""
    below = (confidence - mean).clamp(max=0)
    return torch.exp(-(sigmas**2) * below.square() / (2 * variance).clamp(min=SMALLEST))
