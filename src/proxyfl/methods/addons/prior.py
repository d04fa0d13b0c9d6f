"""The class prior of ProxyFL (Chen and Wang, CVPR 2026): how often each class is met, as clients count it.

In the last local epoch a client counts the true class of every labelled image it visits and the global
model's label of every confident unlabelled one. The server turns the counts into shares and follows them
slowly (released program), or takes the mean of the clients' shares of this round (paper)::

    pooled = sum_k n_k / sum of all            P <- ema * P + (1 - ema) * pooled
    paper:  P <- mean_k (n_k / |n_k|)

A client without counts is skipped; without any counts the prior stays. It starts uniform.

Deviations: the default is the released program. The printed text counts predictions on labelled images, too,
and replaces the prior each round by the mean of the clients' shares; ``fidelity = "paper"`` does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ClientContext, Outputs, ServerContext
from proxyfl.methods.registry import register_addon


@dataclass(frozen=True)
class PriorParameters:
    """Parameters of the class prior."""

    ema: float = setting(0.99, "share of the old prior kept each round", low=0, high=1, paper=0.0)
    pooling: str = setting(
        "counts",
        "counts: pool all counts; clients: mean of the clients' shares",
        choices=("counts", "clients"),
        paper="clients",
    )
    labelled: str = setting(
        "true",
        "class counted for a labelled image: its label, or the global model's prediction",
        choices=("true", "predicted"),
        paper="predicted",
    )
    fixed: bool = setting(False, "keep the prior uniform (isolates the effect of the prior)")


@register_addon
class Prior(Addon):
    name = "prior"
    wants = frozenset({"x", "u_weak", "teacher_x"})
    sends = "class counts up, class prior down (C numbers each)"
    counts = ("counts",)
    Parameters = PriorParameters

    def start(self, ctx: ServerContext) -> Tensors:
        return {"classes": torch.full((ctx.classes,), 1 / ctx.classes)}

    def begin(self, ctx: ClientContext) -> None:
        ctx.memory["prior"] = torch.zeros(ctx.classes, device=ctx.device)

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        if not ctx.last_epoch:
            return
        counts: Tensor = ctx.memory["prior"]
        seen = outputs.batch.y if self.parameters.labelled == "true" else outputs.global_x.argmax(1)
        counts += _members(seen, ctx.classes).sum(0)
        if outputs.pseudo is not None:
            trusted = _members(outputs.global_weak.argmax(1), ctx.classes) & outputs.pseudo.mask[:, None]
            counts += trusted.sum(0)

    def finish(self, ctx: ClientContext) -> Tensors:
        return {"counts": ctx.memory["prior"]}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"counts": (ctx.classes,)}

    def receive(self, update: Update) -> Tensors:
        return {"counts": update.extras["prior/counts"]}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        prior = ctx.extras["prior/classes"]
        counts = torch.stack([tensors["counts"] for tensors in kept])
        if not self.parameters.fixed:
            prior = update_prior(prior, counts, self.parameters.ema, self.parameters.pooling)
        ctx.metrics["prior"] = prior.tolist()
        ctx.metrics["class_counts"] = {str(k): n.tolist() for k, n in zip(ctx.clients, counts, strict=True)}
        return {"classes": prior}


def update_prior(prior: Tensor, counts: Tensor, ema: float, pooling: str) -> Tensor:
    """The next prior from the counts (clients × classes) of one round."""
    counts = counts[counts.sum(1) > 0]
    if not len(counts):
        return prior
    if pooling == "counts":
        shares = counts.sum(0) / counts.sum()
    else:
        shares = (counts / counts.sum(1, keepdim=True)).mean(0)
    return ema * prior + (1 - ema) * shares


def _members(labels: Tensor, classes: int) -> Tensor:
    # A comparison instead of bincount: deterministic on every device, and no synchronisation.
    return labels[:, None] == torch.arange(classes, device=labels.device)
