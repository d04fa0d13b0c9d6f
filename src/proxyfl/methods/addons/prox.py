"""The proximal term of FedProx (Li et al., MLSys 2020): local weights stay near the global ones.

Clients with unusual data would drag the average away; a quadratic term holds them back::

    Lprox = weight / 2 * sum over trainable parameters ||Theta_k - Theta_G||^2

Deviations: none from FedProx, whose factor one half this is; whether the comparison's lambda includes it is
unknown. Buffers (batch-norm statistics) are not penalised. Clients take full local epochs, no partial ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.methods.registry import register_addon


@dataclass(frozen=True)
class ProxParameters:
    """Parameters of the proximal term."""

    weight: float = setting(0.001, "weight of the proximal term (lambda); 0: none", low=0)


@register_addon
class Prox(Addon):
    name = "prox"
    Parameters = ProxParameters

    def begin(self, ctx: ClientContext) -> None:
        ctx.memory["prox"] = [p.detach().clone() for p in ctx.model.parameters()]

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        return proximal(list(ctx.model.parameters()), ctx.memory["prox"], self.parameters.weight)


def proximal(local: list[Tensor], start: list[Tensor], weight: float) -> Tensor:
    """weight / 2 times the squared distance between two lists of tensors."""
    distances = [(a - b).square().sum() for a, b in zip(local, start, strict=True)]
    return weight / 2 * torch.stack(distances).sum()
