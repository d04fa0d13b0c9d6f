"""SemiFL (Diao et al., NeurIPS 2022): labels at the server alone, pseudo-labels made once a round at clients.

At the start of its round a client lets the global model label weak views of its whole pool. Confident images
are its *fix* set; the *mix* set has as many images, drawn with replacement from the pool, each with its
label, sure or not. A client without a confident image sits out. One lambda is drawn for each batch::

    yhat_i = argmax pG(weak u_i),   fix = {i : max pG(weak u_i) >= tau}
    x_mix  = lambda weak(x_fix) + (1 - lambda) weak(x_other),   lambda ~ Beta(beta, beta)
    Lfix   = H(yhat_fix, p(strong x_fix))
    Lmix   = lambda H(yhat_fix, p(x_mix)) + (1 - lambda) H(yhat_other, p(x_mix))
    loss   = Lfix + mix * Lmix

After each mean the server trains on its labelled images: cross entropy of weak views.

Deviations: by default the shared protocol instead of its own (``--protocol own``). Batches have ``train.mu``
times ``train.batch`` images, and an epoch is one pass over the fix set without its incomplete last batch.
Momentum ends with the round unless ``train.keep_momentum`` says otherwise, as its own protocol does.
Statistics of static batch norm come from sums that the round's clients send; the release brings all images
together for them. With add-ons that look at weak views, these go through the network together with the strong
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.rng import numpy_rng
from proxyfl.core.settings import setting
from proxyfl.core.spans import FORWARD, PSEUDO, span
from proxyfl.core.state import Tensors, Update
from proxyfl.data.stream import Batch
from proxyfl.methods.base import NOT_AT_SERVER, Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class SemiFLParameters(MethodParameters):
    """Parameters of SemiFL."""

    mix: float = setting(1.0, "weight of the loss on mixed images; 0: none are mixed", low=0)
    beta: float = setting(0.75, "both parameters of the Beta distribution of lambda", low=1e-3, high=1000)
    server_epochs: int = setting(0, "epochs of the server on its own images; 0: same as train.epochs", low=0)
    server_batch: int = setting(
        0, "images per batch at the server; 0: same as train.batch", low=0, high=100_000
    )


class SemiFL(Method):
    name = "semifl"
    wants = frozenset({"u_weak", "u_strong"})
    undefined: ClassVar[Mapping[str, str]] = NOT_AT_SERVER
    protocol: ClassVar[Mapping[str, object]] = {
        "labels.where": "server",
        "partition.clients": 100,
        "federation.per_round": 10,
        "federation.rounds": 800,
        "federation.weighting": "uniform",
        "aggregation.optimiser": "fedavgm",
        "aggregation.momentum": 0.5,
        "model.name": "wrn-28-2",
        "model.norm": "static",
        "train.epochs": 5,
        "train.batch": 10,
        "train.mu": 1,
        "train.lr": 0.03,
        "train.momentum": 0.9,
        "train.nesterov": True,
        "train.weight_decay": 5e-4,
        "train.schedule": "cosine",
        "train.max_grad_norm": 1.0,
        "train.keep_momentum": "all",
        "method.server_batch": 250,
    }
    protocol_on: ClassVar[Mapping[str, Mapping[str, object]]] = {"cifar100": {"model.name": "wrn-28-8"}}
    needs_labels = False
    shows_steps = False
    sends: ClassVar[str] = "the size of the fix set up (1 number)"
    Parameters = SemiFLParameters

    def begin(self, ctx: ClientContext) -> None:
        size = ctx.settings.batch * ctx.settings.mu
        probabilities = ctx.pool_predictions
        ctx.memory["label"], ctx.memory["sure"] = probabilities.argmax(1), self.confident(probabilities)
        fix = ctx.memory["sure"].nonzero()[:, 0]
        ctx.stream.restrict(fix)
        ctx.stream.steps = max(1, len(fix) // size) if len(fix) else 0
        ctx.memory["lambda"] = numpy_rng(ctx.seed, ctx.task.round, ctx.task.client, "mix")
        ctx.memory["draws"] = ctx.rng("mix set")

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        looks = any("u_weak" in addon.wants for addon in self.addons)
        outputs = ctx.forward(batch if looks else replace(batch, u_weak=batch.u_weak[:0]))
        with span(PSEUDO):
            label = ctx.memory["label"][batch.u_index]
            outputs.pseudo = Pseudo(label, torch.ones_like(label, dtype=torch.bool))
        losses = {"unlabelled": F.cross_entropy(outputs.strong, label)}
        if self.parameters.mix:
            losses["mix"] = self.parameters.mix * self._mixed(batch, label, ctx)
        ctx.descend(losses | ctx.terms(outputs))
        return outputs

    def _mixed(self, batch: Batch, label: Tensor, ctx: ClientContext) -> Tensor:
        pool, beta = len(ctx.stream.pool), self.parameters.beta
        drawn = torch.randint(pool, (len(label),), generator=ctx.memory["draws"])
        share = float(ctx.memory["lambda"].beta(beta, beta))
        images = share * batch.u_weak + (1 - share) * ctx.stream.weak_views(drawn)
        with span(FORWARD), ctx.autocast():
            logits = ctx.model(images).float()
        return mixed_cross_entropy(logits, label, ctx.memory["label"][drawn.to(ctx.device)], share)

    def finish(self, ctx: ClientContext) -> Tensors:
        label, sure = ctx.memory["label"], ctx.memory["sure"]
        ctx.epoch = ctx.settings.epochs - 1  # who sits out has no last epoch to note its decisions in
        ctx.show(torch.arange(len(label), device=ctx.device), label=label, mask=sure)
        return {"fix": sure.sum().float().reshape(1)}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"fix": (1,)}

    def weight_of(self, update: Update, rule: float) -> float:
        return rule if float(update.extras["semifl/fix"]) > 0 else 0.0

    def refine(self, ctx: ServerContext) -> None:
        ctx.train_own(self.parameters.server_epochs, self.parameters.server_batch)


def mixed_cross_entropy(logits: Tensor, first: Tensor, second: Tensor, share: float) -> Tensor:
    """share H(first, p) + (1 - share) H(second, p), mean over the images."""
    return share * F.cross_entropy(logits, first) + (1 - share) * F.cross_entropy(logits, second)


register(
    Recipe("semifl", "labels at the server, the global model labels every pool once per round", SemiFL),
    Shown("labels at the server", 61, "orange", "dotted", "s"),
)
