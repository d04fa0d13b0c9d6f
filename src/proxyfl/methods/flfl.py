"""(FL)² (Lee et al., NeurIPS 2024): few labels, at the server alone; thresholds that adapt to the client.

At the start of its round a client lets the global model label weak views of its whole pool. How sure the
model is on average sets the threshold, how often it names a class lowers that of the class (client-specific
adaptive thresholds). Images below it are left out::

    tau_k = mean_i max pG(weak u_i),   s = mean_i pG(weak u_i),   yhat_i = argmax pG(weak u_i)
    kept  = {i : max pG(weak u_i) >= tau_k s(yhat_i) / max_c s(c)}

The model must also predict the same a step uphill, where the loss of the sure images rises fastest
(sharpness-aware consistency). T is |w| + eta for weights and 1 for biases, g the gradient of the cross
entropy of the sure images, those with max pG >= tau::

    w*   = w + rho T² g / |T g|
    Lcat = mean over the kept images of H(yhat, p(strong u))
    Lcon = sum over the sure images of KL(p(strong u) || p*(strong u)) / batch
    w   <- w - lr (grad Lcat at w + weight * grad Lcon at w*)

The mean weighs client k by 1 - tau_k. The server trains on its labelled images before the first round and
after each mean.

Deviations: by default the shared protocol instead of its own (``--protocol own``), and fewer epochs before
the first round. Batches have ``train.mu`` times ``train.batch`` images, and an epoch is one pass over the
kept images without its incomplete last batch. Momentum of the server's training ends with the round unless
``train.keep_momentum`` says otherwise, as its own protocol does. Statistics of batch norm see each batch
once, at the trained weights. No client weighs less than 1e-6. With add-ons that look at weak views, batches
are drawn from the whole pool, so that these see all images; the losses above stay those of the kept and of
the sure ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.settings import setting
from proxyfl.core.spans import BACKWARD, FORWARD, LOSSES, OPTIMISER, PSEUDO, span
from proxyfl.core.state import Tensors, Update
from proxyfl.data.stream import Batch
from proxyfl.methods.base import NOT_AT_SERVER, Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.losses import masked_cross_entropy, masked_mean
from proxyfl.methods.registry import Recipe, Shown, register

LEAST = 1e-6
"""The weight of a client that is sure of everything: it still takes part."""


@dataclass(frozen=True)
class FLFLParameters(MethodParameters):
    """Parameters of (FL)²."""

    weight: float = setting(1.0, "weight of the consistency loss; 0: no ascent step", low=0)
    rho: float = setting(0.1, "norm of the ascent step", low=0)
    eta: float = setting(0.01, "added to a weight's magnitude, which scales its ascent step", low=0)
    pretrain: int = setting(5, "epochs of the server on its own images before the first round", low=0)
    server_epochs: int = setting(
        0, "epochs of the server after each aggregation; 0: same as train.epochs", low=0
    )
    server_batch: int = setting(
        0, "images per batch at the server; 0: same as train.batch", low=0, high=100_000
    )


class FLFL(Method):
    name = "flfl"
    wants = frozenset({"u_weak", "u_strong"})
    undefined: ClassVar[Mapping[str, str]] = NOT_AT_SERVER
    protocol: ClassVar[Mapping[str, object]] = {
        "labels.where": "server",
        "partition.clients": 100,
        "federation.per_round": 10,
        "federation.rounds": 800,
        "aggregation.optimiser": "fedavgm",
        "aggregation.momentum": 0.5,
        "model.name": "wrn-28-2",
        "model.norm": "static",
        "train.epochs": 5,
        "train.batch": 32,
        "train.mu": 1,
        "train.lr": 0.03,
        "train.momentum": 0.9,
        "train.nesterov": True,
        "train.weight_decay": 5e-4,
        "train.schedule": "cosine",
        "train.max_grad_norm": 1.0,
        "train.keep_momentum": "server",
        "method.pretrain": 50,
        "method.server_batch": 10,
    }
    protocol_on: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "cifar100": {"model.name": "wrn-28-8", "method.rho": 1.0}
    }
    needs_labels = False
    shows_steps = False
    sends: ClassVar[str] = "the mean confidence of a client's pool up (1 number)"
    Parameters = FLFLParameters

    def begin(self, ctx: ClientContext) -> None:
        size = ctx.settings.batch * ctx.settings.mu
        found = ctx.pool_predictions
        tau, threshold = adaptive_threshold(found)
        best, label = found.max(1)
        kept = best >= threshold[label]
        ctx.memory |= {"tau": tau, "label": label, "kept": kept, "sure": kept & self.confident(found)}
        chosen = kept.nonzero()[:, 0]
        if not self._shares_pool:
            ctx.stream.restrict(chosen)
        ctx.stream.steps = max(1, (len(kept) if self._shares_pool else len(chosen)) // size)

    @property
    def _shares_pool(self) -> bool:
        """Whether an add-on learns from the images that are left out, too."""
        return any("u_weak" in addon.wants for addon in self.addons)

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        outputs = ctx.forward(batch if self._shares_pool else replace(batch, u_weak=batch.u_weak[:0]))
        with span(PSEUDO):
            label, kept, sure = (ctx.memory[key][batch.u_index] for key in ("label", "kept", "sure"))
            outputs.pseudo = Pseudo(label, kept)
        with span(LOSSES):
            losses = {"unlabelled": masked_cross_entropy(outputs.strong, label, kept, "selected")}
        losses |= ctx.terms(outputs)
        if self.parameters.weight and bool(sure.any()):
            apart, slopes = self._consistency(outputs, label, sure, ctx)
            self._descend(losses, apart, slopes, ctx)
        else:
            ctx.descend(losses)
        return outputs

    def _consistency(
        self, outputs: Outputs, label: Tensor, sure: Tensor, ctx: ClientContext
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The consistency loss and its gradient at the weights uphill."""
        own = dict(ctx.model.named_parameters())
        uphill = masked_cross_entropy(outputs.strong, label, sure, "selected")
        with span(BACKWARD):
            slopes = torch.autograd.grad(uphill, list(own.values()), retain_graph=True, allow_unused=True)
        moved = ascended(own, slopes, self.parameters.rho, self.parameters.eta)
        buffers = {name: value.clone() for name, value in ctx.model.named_buffers()}
        with span(FORWARD), ctx.autocast():
            logits = functional_call(ctx.model, {**moved, **buffers}, (outputs.batch.u_strong,))
        apart = F.kl_div(logits.float().log_softmax(1), outputs.strong.detach().softmax(1), reduction="none")
        loss = self.parameters.weight * masked_mean(apart.sum(1), sure)
        with span(BACKWARD):
            return loss, list(torch.autograd.grad(loss, list(moved.values()), allow_unused=True))

    def _descend(
        self, losses: dict[str, Tensor], apart: Tensor, slopes: Sequence[Tensor | None], ctx: ClientContext
    ) -> None:
        """One step along the gradient of the losses here and that of the consistency uphill."""
        ctx.log(losses | {"consistency": apart})
        with span(OPTIMISER):
            ctx.optimiser.zero_grad(set_to_none=True)
        with span(BACKWARD):
            torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        for parameter, slope in zip(ctx.model.parameters(), slopes, strict=True):
            if slope is not None:
                parameter.grad = slope if parameter.grad is None else parameter.grad + slope
        with span(OPTIMISER):
            ctx.optimiser.step()

    def finish(self, ctx: ClientContext) -> Tensors:
        label = ctx.memory["label"]
        ctx.show(torch.arange(len(label), device=ctx.device), label=label, mask=ctx.memory["kept"])
        return {"tau": ctx.memory["tau"].float().reshape(1)}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"tau": (1,)}

    def receive(self, update: Update) -> Tensors:
        if not 0 <= float(update.extras["flfl/tau"]) <= 1:
            raise UpdateRefused("its mean confidence is not a number between 0 and 1")
        return {}

    def weight_of(self, update: Update, rule: float) -> float:
        return max(LEAST, 1 - float(update.extras["flfl/tau"]))

    def prepare(self, ctx: ServerContext) -> None:
        if self.parameters.pretrain:
            ctx.train_own(self.parameters.pretrain, self.parameters.server_batch)

    def refine(self, ctx: ServerContext) -> None:
        ctx.train_own(self.parameters.server_epochs, self.parameters.server_batch)


def adaptive_threshold(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The mean confidence of the rows, and for each class the threshold that follows from it."""
    tau, share = probabilities.amax(1).mean(), probabilities.mean(0)
    return tau.clamp(max=1), tau * share / share.max()


def ascended(
    weights: Mapping[str, Tensor], slopes: Sequence[Tensor | None], rho: float, eta: float
) -> Tensors:
    """The weights a step uphill (ASAM): each tensor scaled by its size, biases not."""
    scales = {
        name: torch.ones_like(value) if name.endswith("bias") else value.detach().abs() + eta
        for name, value in weights.items()
    }
    steps = {
        name: scales[name] * (torch.zeros_like(scales[name]) if slope is None else slope)
        for name, slope in zip(weights, slopes, strict=True)
    }
    length = torch.stack([step.square().sum() for step in steps.values()]).sum().sqrt().clamp(min=1e-12)
    return {
        name: (value.detach() + rho * scales[name] * steps[name] / length).requires_grad_()
        for name, value in weights.items()
    }


register(
    Recipe("flfl", "labels at the server, thresholds adapt to the client, weights are perturbed", FLFL),
    Shown("labels at the server", 62, "orange", "long-dash", "D"),
)
