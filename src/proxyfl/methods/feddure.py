"""FedDure (Bai et al., AAAI 2024): two regulators judge pseudo-labels by what they do to labelled images.

Every client trains beside its model theta a coarse regulator phi, a second network, and a fine regulator
omega, a small network that weighs each unlabelled image. omega learns which images make a step of phi good
for the labelled ones, and whether that step helped scales the lesson of theta. yhat_i = lab(p_theta(weak
u_i)), l_i = H(yhat_i, p_phi(strong u_i)), m_i = h_omega(p_phi(strong u_i)); per step::

    (a) phi-  = phi - lr * grad_phi mean_i m_i l_i                        m_i constant for phi
    (b) omega = Adam step on H(y, p_phi-(x)), through phi-
    (c) phi'  = phi - lr * grad_phi mean_i m_i l_i                        m_i of the new omega
    (d) d     = H(y, p_phi(x)) - H(y, p_phi'(x))                          above 0: the labels helped
    (e) theta = SGD step on Ls + mean_i m_i H(yhat_i, pS_i) + d * mean_i H(yhat_i, pS_i)

The gradient of (b) is exact: -lr * mean_i (dm_i / domega) <grad_phi l_i, v>, v = grad H at phi-, where one
forward-mode pass along v gives the inner products of all images. In (e) m_i is that of (c): new omega, phi
before its step. phi starts from the global model, omega is drawn anew; only theta is sent.

The released program is another method (``variant = "release"``), in the manner of Meta Pseudo Labels. A
student learns the hard labels that the teacher gives to weak views; s, how that step changed the student's
labelled loss, steers the teacher, which is the model that is sent. Both use Adam, and the teacher takes a few
labelled steps besides. pL and pS are the teacher's, t counts the steps of the round::

    teacher loss = Ls + w_t mean_i [conf(pL_i) >= release_tau] H(pL_i, pS_i) + s * mean_i H(lab(pS_i), pS_i)
    w_t = release_weight * min(1, t / release_ramp),   s = after - before, the opposite of d (``sign``)

Deviations: a client without labels keeps phi and omega as the round began and d = s = 0. The release takes
its labelled steps first (``release_tune_at = "start"``) and warms its learning rate up over 10 steps while it
trains for 5; here the rate is constant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.optim import Adam, Optimizer

from proxyfl.core.dealing import SERVER
from proxyfl.core.settings import setting
from proxyfl.core.spans import BACKWARD, FORWARD, OPTIMISER, loss_span, span
from proxyfl.core.state import Tensors
from proxyfl.data.stream import Batch
from proxyfl.methods.base import Addon, Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, descend
from proxyfl.methods.losses import masked_mean
from proxyfl.methods.registry import Recipe, Shown, register

Named = Mapping[str, Tensor]
"""Parameters or buffers of a network, by name."""


@dataclass(frozen=True)
class FedDureParameters(MethodParameters):
    """Parameters of FedDure. ``tau`` only says which images add-ons take for confident."""

    variant: str = setting(
        "paper", "the paper's method, or the released program", choices=("paper", "release")
    )
    sign: str = setting(
        "own",
        "change of the labelled loss: before - after, after - before, or the variant's own",
        choices=("own", "before-after", "after-before"),
    )
    hidden: int = setting(128, "hidden units of the fine regulator; 100 in the release", low=1)
    regulator_lr: float = setting(1e-3, "learning rate of the fine regulator (Adam)", low=0)
    release_lr: float = setting(5e-4, "release: learning rate of teacher and student (Adam)", low=0)
    release_tau: float = setting(0.6, "release: confidence from which a soft label is used", low=0, high=1)
    release_weight: float = setting(8.0, "release: full weight of the unlabelled loss", low=0)
    release_ramp: int = setting(20, "release: steps of a round until that weight is reached", low=1)
    release_tune: int = setting(5, "release: labelled steps of the teacher besides", low=0)
    release_tune_at: str = setting("end", "release: when these are taken", choices=("end", "start"))


@dataclass
class Regulators:
    """What a client holds for one round: phi with its buffers, and omega."""

    phi: Tensors
    buffers: Tensors
    fine: nn.Module
    optimiser: Optimizer


class FedDure(Method):
    name = "feddure"
    wants = frozenset({"x", "u_weak", "u_strong"})
    needs_labels = False
    undefined: ClassVar[Mapping[str, str]] = {SERVER: "its regulators use the client's labelled images"}
    Parameters = FedDureParameters

    def __init__(self, parameters: Any = None, addons: Sequence[Addon] | None = None, **values: Any) -> None:
        super().__init__(parameters, addons, **values)
        if self.parameters.variant == "release":
            self.own_optimiser = "Adam with method.release_lr"

    def begin(self, ctx: ClientContext) -> None:
        options = self.parameters
        if options.variant == "release":
            student = ctx.model_from(ctx.task.weights).train().requires_grad_(True)
            ctx.memory["student"] = student, Adam(student.parameters(), options.release_lr)
            ctx.optimiser = Adam(self.trainables(ctx), options.release_lr)
            return
        fine = new_regulator(ctx.classes, options.hidden, ctx.rng("feddure"), ctx.device)
        phi = {name: value.detach().clone() for name, value in ctx.model.named_parameters()}
        buffers = {name: value.clone() for name, value in ctx.model.named_buffers()}
        adam = Adam(fine.parameters(), options.regulator_lr)
        ctx.memory["regulators"] = Regulators(phi, buffers, fine, adam)

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        if ctx.steps == 0 and self.parameters.release_tune_at == "start":
            self._tune(ctx)
        return super().step(batch, ctx)

    def finish(self, ctx: ClientContext) -> Tensors:
        if self.parameters.release_tune_at == "end":
            self._tune(ctx)
        return {}

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        local = outputs.local_weak
        label = local.argmax(1)
        if self.parameters.variant == "release":
            sure = local.amax(1) >= self.parameters.release_tau
            ctx.show(outputs.batch.u_index, label=label, mask=sure)
            return Pseudo(label, sure, local)
        ctx.show(outputs.batch.u_index, label=label, mask=torch.ones_like(label, dtype=torch.bool))
        return Pseudo(label, self.confident(local))

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        pseudo, options = outputs.pseudo, self.parameters
        if pseudo is None:
            return {}
        if options.variant == "release":
            ramp = options.release_weight * min(1.0, (ctx.steps + 1) / options.release_ramp)
            soft = F.cross_entropy(outputs.strong, outputs.local_weak, reduction="none")
            own = F.cross_entropy(outputs.strong, outputs.strong.argmax(1))
            change = self._student_change(outputs.batch, pseudo.label, ctx)
            return {"unlabelled": ramp * masked_mean(soft, pseudo.mask), "feedback": change * own}
        trust, change = self._regulate(outputs.batch, pseudo.label, ctx)
        each = F.cross_entropy(outputs.strong, pseudo.label, reduction="none")
        return {"unlabelled": (trust * each).mean(), "feedback": change * each.mean()}

    def _regulate(self, batch: Batch, label: Tensor, ctx: ClientContext) -> tuple[Tensor, Tensor]:
        """Steps (a) to (d): how far each unlabelled image is trusted, m, and whether they helped, d."""
        held: Regulators = ctx.memory["regulators"]
        model, buffers, lr = ctx.model, held.buffers, self.learning_rate(ctx.settings.lr)
        strong, x, y = batch.u_strong, batch.x, batch.y
        with ctx.autocast():
            if not len(x):
                _, probabilities = _pass(model, held.phi, buffers, strong, label)
                return trusted(held.fine, probabilities).detach(), strong.new_zeros(())
            phi = _leaves(held.phi)
            gradient, losses, probabilities = _judge(model, phi, buffers, held.fine, lr, strong, label, x, y)
            for name, parameter in held.fine.named_parameters():
                parameter.grad = gradient[name]
            with span(OPTIMISER):
                held.optimiser.step()
            trust = trusted(held.fine, probabilities).detach()
            before = labelled_loss(model, held.phi, buffers, x, y)
            held.phi = _moved(phi, losses, trust, lr)
            after = labelled_loss(model, held.phi, buffers, x, y)
        return trust, self._change(before, after)

    def _student_change(self, batch: Batch, label: Tensor, ctx: ClientContext) -> Tensor:
        """s: how one step on the teacher's labels of weak views changes the student's labelled loss."""
        student, optimiser = ctx.memory["student"]
        if not len(batch.x):
            return torch.zeros((), device=ctx.device)

        def labelled() -> Tensor:
            with span(FORWARD), torch.no_grad(), ctx.autocast():
                return F.cross_entropy(student(batch.x).float(), batch.y)

        before = labelled()
        with span(FORWARD), ctx.autocast():
            logits = student(batch.u_weak)
        descend(F.cross_entropy(logits.float(), label), optimiser)
        return self._change(before, labelled())

    def _change(self, before: Tensor, after: Tensor) -> Tensor:
        sign, release = self.parameters.sign, self.parameters.variant == "release"
        backwards = sign == "after-before" or (sign == "own" and release)
        return after - before if backwards else before - after

    def _tune(self, ctx: ClientContext) -> None:
        """Labelled steps of the release's teacher; unlabelled images only share its batch norm."""
        if self.parameters.variant != "release" or not len(ctx.stream.data.labelled):
            return
        steps = self.parameters.release_tune
        for batch in islice(chain.from_iterable(ctx.stream.epoch() for _ in range(steps)), steps):
            outputs = ctx.forward(batch)
            with span(loss_span("supervised")):
                terms = [self.supervised(outputs)]
            terms += ctx.terms(outputs).values()
            descend(torch.stack(terms).sum(), ctx.optimiser)


def new_regulator(classes: int, hidden: int, generator: torch.Generator, device: torch.device) -> nn.Module:
    """h_omega: probabilities (N, C) to weights (N, 1), drawn in torch's usual ranges."""
    first, last = nn.Linear(classes, hidden, device="meta"), nn.Linear(hidden, 1, device="meta")
    for layer in (first, last):
        bound = 1 / math.sqrt(layer.in_features)
        for name, empty in list(layer.named_parameters()):
            drawn = torch.empty(empty.shape).uniform_(-bound, bound, generator=generator)
            layer.register_parameter(name, nn.Parameter(drawn.to(device)))
    return nn.Sequential(first, nn.ReLU(), last, nn.Sigmoid())


def trusted(regulator: nn.Module, probabilities: Tensor) -> Tensor:
    """m_i for each row, in the precision of ``probabilities``."""
    with torch.autocast(probabilities.device.type, enabled=False):
        weights: Tensor = regulator(probabilities)
    return weights.reshape(-1)


def labelled_loss(model: nn.Module, phi: Named, buffers: Named, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy of phi in training mode. ``buffers`` and the model stay as they are."""
    return _pass(model, phi, buffers, x, y)[0].mean()


def _judge(
    model: nn.Module, phi: Tensors, buffers: Named, regulator: nn.Module, lr: float, *images: Tensor
) -> tuple[Tensors, Tensor, Tensor]:
    """Steps (a) and (b): the regulator's gradient, the strong views' losses with their graph, and their
    probabilities. ``images`` are strong views and their labels, labelled images and theirs.
    """
    strong, labels, x, y = images
    losses, probabilities = _pass(model, phi, buffers, strong, labels)
    trust = trusted(regulator, probabilities)
    virtual = _leaves(_moved(phi, losses, trust.detach(), lr))
    direction = _gradient(labelled_loss(model, virtual, buffers, x, y), virtual)
    frozen = {name: value.detach() for name, value in phi.items()}
    with torch.autocast(strong.device.type, enabled=False):  # under it values and tangents differ in type
        slopes = jvp(lambda at: _pass(model, at, buffers, strong, labels)[0], (frozen,), (direction,))[1]
    gradient = _gradient(-lr * (trust * slopes).mean(), dict(regulator.named_parameters()))
    return gradient, losses, probabilities


def _pass(
    model: nn.Module, phi: Named, buffers: Named, images: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Cross entropy and stopped probabilities of each image, in training mode, on copies of the buffers."""
    was_training = model.training
    copies = {name: value.clone() for name, value in buffers.items()}
    try:
        with span(FORWARD):
            logits: Tensor = functional_call(model.train(), {**phi, **copies}, (images,))
    finally:
        model.train(was_training)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, labels, reduction="none"), logits.detach().softmax(1)


def _leaves(phi: Named) -> Tensors:
    return {name: value.detach().requires_grad_() for name, value in phi.items()}


def _gradient(loss: Tensor, parameters: Named) -> Tensors:
    """By name; zero for parameters that the loss does not see. The graph stays for another time."""
    values = list(parameters.values())
    with span(BACKWARD):
        found = torch.autograd.grad(loss, values, retain_graph=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def _moved(phi: Tensors, losses: Tensor, weights: Tensor, lr: float) -> Tensors:
    """phi - lr * grad mean_i weights_i losses_i: steps (a) and (c)."""
    gradient = _gradient((weights * losses).mean(), phi)
    return {name: value.detach() - lr * gradient[name] for name, value in phi.items()}


register(
    Recipe("feddure", "two regulators weight pseudo-labels by their effect on labelled images", FedDure),
    Shown("federated SSL", 35, "orange", "dash-dot", "o"),
)
