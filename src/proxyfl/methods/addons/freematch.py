"""FreeMatch (Wang et al., ICLR 2023) as a mask for FixMatch and its kin: thresholds that learning sets.

Instead of a fixed threshold, an image is trusted when its confidence reaches the average one, lowered for
classes that the model seldom predicts. p is the prediction on the weak view that named the label yhat::

    tau  <- ema tau + (1 - ema) mean_i max p_i             ptilde <- ema ptilde + (1 - ema) mean_i p_i
    h    <- ema h   + (1 - ema) histogram of yhat          (all start at 1 / C, and move before the mask)
    mask_i = [max p_i >= tau_c],   tau_c = clip(tau, low, high) * ptilde_c / max(ptilde),   c = yhat_i
    Lfair  = sum_c N(ptilde / h)_c log N(pbar / hbar)_c
    loss   = loss of the parent with this mask + fairness * Lfair

pbar is the mean prediction on strong views of the trusted images and hbar the histogram of its classes; N
makes the sum one, and 1 / 0 counts as 0. Lfair pulls the predictions on strong views apart from those that
the model has made so far, so that no class is left out.

By default the averages are those of the global model's predictions on the client's whole pool
(``statistics``, see ``averages.py``).

Deviations: the federated setting; the logarithm is taken of N + 1e-12, as in the release.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.core.errors import ConfigError
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors
from proxyfl.methods.addons.averages import AverageParameters, Averages
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.registry import register_addon

SMALLEST = 1e-12


@dataclass(frozen=True)
class FreeMatchParameters(AverageParameters):
    """Parameters of FreeMatch."""

    low: float = setting(0.0, "lowest threshold, before it is reduced for individual classes", low=0, high=1)
    high: float = setting(1.0, "largest threshold", low=0, high=1)
    fairness: float = setting(0.01, "weight of the fairness loss (w_f); 0: none", low=0)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"method.freematch.low = {self.low} is above high = {self.high}; swap the two")


@register_addon
class FreeMatch(Averages):
    name = "freematch"
    wants = frozenset({"u_weak", "u_strong"})
    Parameters = FreeMatchParameters

    averaged: ClassVar[str] = "its average confidence, prediction and label"

    def first(self, classes: int) -> Tensors:
        uniform = torch.full((classes,), 1 / classes)
        return {"threshold": uniform[0], "average": uniform, "labels": uniform}

    def measured(self, rows: Tensor) -> Tensors:
        return batch_statistics(rows, rows.argmax(1))

    def weigh(self, pseudo: Pseudo, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        scores = pseudo.named_by(outputs)
        held: Tensors = ctx.memory[self.name]
        if self.keeps:
            seen = batch_statistics(scores, pseudo.label)
            held = {name: seen[name].lerp(value, self.parameters.ema) for name, value in held.items()}
            ctx.memory[self.name] = held
        thresholds = class_thresholds(
            held["threshold"], held["average"], self.parameters.low, self.parameters.high
        )
        return replace(pseudo, mask=scores.amax(1) >= thresholds[pseudo.label], weight=None)

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        if outputs.pseudo is None or not self.parameters.fairness:
            return None
        held = ctx.memory[self.name]
        loss = fairness_loss(outputs.strong, outputs.pseudo.mask, held["average"], held["labels"])
        return loss * float(self.parameters.fairness)


def batch_statistics(rows: Tensor, label: Tensor) -> Tensors:
    """Mean confidence, mean prediction and shares of the labels."""
    members = label[:, None] == torch.arange(rows.shape[1], device=rows.device)
    return {
        "threshold": rows.amax(1).mean(),
        "average": rows.mean(0),
        "labels": members.to(rows.dtype).mean(0),
    }


def class_thresholds(threshold: Tensor, average: Tensor, low: float, high: float) -> Tensor:
    """tau_c: the threshold, lowered for classes that are predicted less than others."""
    return threshold.clamp(low, high) * average / average.amax()


def fairness_loss(strong: Tensor, mask: Tensor, average: Tensor, labels: Tensor) -> Tensor:
    """Lfair, from logits of strong views; zero where no image is trusted."""
    trusted = mask[:, None].to(strong.dtype)
    count = trusted.sum().clamp(min=1)
    members = strong.argmax(1)[:, None] == torch.arange(strong.shape[1], device=strong.device)
    named = (members * trusted).sum(0) / count
    predicted = (strong.softmax(1) * trusted).sum(0) / count
    usual, now = _modulated(average, labels), _modulated(predicted, named)
    return (usual * (now + SMALLEST).log()).sum() * mask.any()


def _modulated(shares: Tensor, labels: Tensor) -> Tensor:
    """N(shares / labels)."""
    lifted = torch.where(labels > 0, shares / labels.clamp(min=SMALLEST), 0.0)
    return lifted / lifted.sum().clamp(min=SMALLEST)
