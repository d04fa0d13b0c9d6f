"""FedLoKe (Zhang et al., CIKM 2023): a private model per client and the shared one teach each other.

Every client keeps a model L of its own, never sent, that is blended with the shared model G at the start of
its round. In each step both train, each on the other's soft predictions of the images the other is sure of,
and G on strongly augmented labelled images::

    L <- m L + (1 - m) G                                  (all floating tensors, statistics included)
    loss_L = H(y, L(weak x))   + r_t mean_i [ent(qG_i) < delta] KL(qG_i || L(strong u_i))
    loss_G = H(y, G(strong x)) + r_t mean_i [ent(qL_i) < delta] KL(qL_i || G(strong u_i))
    q = stopped predictions on weak views of the models being trained,   r_t = min(1, t / ramp)

A client's first private model is the federation's initial one, rebuilt from the seed, so nothing is stored
for clients that were never chosen. Add-ons act on the shared model, which is the one that is sent and
evaluated.

Deviations: the optimiser is the shared protocol's instead of the original's (lr 0.01, plain, element-wise
clipping at 0.1, one epoch); ``clip`` brings the clipping back. The release averages clients uniformly; here
the mean is weighted as for every method (``federation.weighting``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.core.dealing import SERVER
from proxyfl.core.settings import setting
from proxyfl.core.spans import PSEUDO, loss_span, span
from proxyfl.core.state import Tensors, namespace, within
from proxyfl.data.stream import Batch
from proxyfl.methods.base import Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, descend
from proxyfl.methods.losses import masked_mean
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class FedLoKeParameters(MethodParameters):
    """Parameters of FedLoKe."""

    keep: float = setting(0.9, "share of the private model kept in the blend (m)", low=0, high=1)
    delta: float = setting(0.1, "entropy in nats below which a soft prediction is used", low=0)
    ramp: int = setting(200, "rounds until the unlabelled loss has its full weight", low=1)
    clip: float = setting(0.0, "element-wise bound on gradients; 0: none", low=0)


class FedLoKe(Method):
    name = "fedloke"
    recalls_start = True
    wants = frozenset({"x", "x_strong", "u_weak", "u_strong"})
    needs_labels = False
    undefined: ClassVar[Mapping[str, str]] = {
        SERVER: "a client's private model learns from the client's own labelled images"
    }
    keeps = "a private model"
    Parameters = FedLoKeParameters

    def begin(self, ctx: ClientContext) -> None:
        own = namespace(ctx.state, "model") or ctx.initial()
        blended = blend(own, ctx.task.weights, self.parameters.keep)
        private = ctx.model_from(blended).train().requires_grad_(True)
        ctx.memory["private"], ctx.memory["optimiser"] = private, ctx.new_optimiser(private.parameters())

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        options, network = self.parameters, ctx.memory["private"]
        shared = ctx.forward(replace(batch, x=batch.x_strong))
        private = ctx.forward(batch, network)
        if len(batch.u_weak):
            with span(PSEUDO):
                shared.pseudo = self.pseudo_label(shared, ctx, private)
        rise = ramp(ctx.task.round, options.ramp)
        lesson = rise * taught(shared.local_weak, private.strong, options.delta)
        with span(loss_span("supervised")):
            own, others = self.supervised(private), self.supervised(shared)
        descend(own + lesson, ctx.memory["optimiser"], options.clip)
        losses = {
            "supervised": others,
            "unlabelled": rise * taught(private.local_weak, shared.strong, options.delta),
        }
        ctx.descend(losses | ctx.terms(shared), clip=options.clip)
        return shared

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext, private: Outputs | None = None) -> Pseudo:
        """Whose prediction the shared model learns from: the private model's, where its entropy is low."""
        teacher = (private or outputs).local_weak
        label, mask = teacher.argmax(1), entropy(teacher) < self.parameters.delta
        ctx.show(outputs.batch.u_index, label=label, mask=mask)
        return Pseudo(label, mask)

    def finish(self, ctx: ClientContext) -> Tensors:
        ctx.state |= within("model", ctx.memory["private"].state_dict())
        return {}


def blend(private: Mapping[str, Tensor], shared: Mapping[str, Tensor], keep: float) -> Tensors:
    """keep × private + (1 − keep) × shared for floating tensors; integer ones are the shared model's."""
    return {
        name: keep * private[name] + (1 - keep) * value if value.is_floating_point() else value
        for name, value in shared.items()
    }


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy of each row, in nats."""
    return torch.sum(torch.special.entr(probabilities), 1)


def taught(teacher: Tensor, student: Tensor, delta: float) -> Tensor:
    """Mean over all rows of [ent(teacher) < delta] KL(teacher || softmax(student))."""
    divergence = -entropy(teacher) - (teacher * student.log_softmax(1)).sum(1)
    return masked_mean(divergence, entropy(teacher) < delta)


def ramp(round: int, length: int) -> float:
    """r_t = min(1, t / length); rounds count from 1."""
    return min(1.0, round / length)


register(
    Recipe("fedloke", "a private model per client and the shared one teach each other", FedLoKe),
    Shown("federated SSL", 32, "green", "dash-dot", "d"),
)
