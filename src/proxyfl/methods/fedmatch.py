"""FedMatch (Jeong et al., ICLR 2021), labels at the clients or at the server: weights in two halves that
learn apart.

Every weight is the sum of sigma, which learns from labelled images alone, and psi, which learns from
unlabelled ones alone, so that neither undoes what the other knows. Now and then a client is lent the psi of
the clients whose models answer most like its own; these helpers vote on pseudo-labels and are agreed with,
and of either half only entries that moved are sent::

    Theta  = sigma + psi,   psi_0 = 0.2 sigma_0
    sigma <- SGD on lambda_s H(y, p(weak x)),  psi fixed
    psi   <- SGD on lambda_i Phi + lambda_l2 ||sigma - psi||^2 + lambda_l1 ||psi||_1,  sigma fixed
    Phi    = mean_i [conf(p_i) >= 0.75] (H(yhat_i, p(strong u_i)) + 1/H sum_h KL(p_h(u_i) || p(u_i)))
    yhat_i = argmax_c of the votes of p_i = p(weak u_i) and of the helpers p_h = sigma + psi_h
    sent   = entries with |delta| > 5e-5;   sigma_G, psi_G = uniform means

With labels at the server, sigma learns there, before round 1 and after each mean, and psi at the clients, who
leave sigma as they received it.

The weights of these losses belong to the learning rate 1e-3 without momentum: at 0.1, psi - sigma is
multiplied by 1 - 2 * 10 * 0.1 = -1 in every step and swings for ever. Hence a learning rate of its own.

Deviations: psi exists for convolutions and linear maps only; biases, batch norm and its statistics belong
to sigma, and only the sigma step's pass moves the statistics (the original network has neither). Phi is
divided by all images instead of the confident ones; predictions are on weak instead of clean views; the
learning rate is constant (the original divides it by 3 on a plateau); batches and epochs are the shared
protocol's; clients embed their own models. Tensors travel densely here, holding what the sparse ones
would give; ``counts`` in the metrics says how many entries those have. With labels at the server the original
trains sigma before the clients of each round and measures after the mean; here a round ends with sigma's
training and is measured then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from proxyfl.core.errors import MethodError
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.settings import setting
from proxyfl.core.spans import FORWARD, span
from proxyfl.core.state import Tensors, Update, detached, namespace, within
from proxyfl.data.stream import Batch
from proxyfl.data.vectors import sample_shape
from proxyfl.methods.base import Addon, Method
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext, descend
from proxyfl.methods.halves import compose, decompose, decomposition_penalty, halves, joined, sparse_delta
from proxyfl.methods.losses import masked_mean
from proxyfl.methods.optimisers import SGD
from proxyfl.methods.registry import Recipe, Shown, register
from proxyfl.models import fold_batchnorm


@dataclass(frozen=True)
class FedMatchParameters:
    """Parameters of FedMatch."""

    lr: float = setting(
        1e-3, "learning rate of both updates, instead of train.lr; keep lr * l2 below 1, or psi swings", low=0
    )
    momentum: float = setting(0.0, "momentum of both updates, instead of train.momentum", low=0, high=1)
    supervised: float = setting(10.0, "weight of the labelled loss (lambda_s)", low=0)
    agreement: float = setting(0.01, "weight of pseudo-labels and helpers (lambda_i)", low=0)
    l2: float = setting(10.0, "weight of the squared distance between sigma and psi (lambda_l2)", low=0)
    l1: float = setting(1e-4, "weight of the sum of absolute psi (lambda_l1)", low=0)
    confidence: float = setting(0.75, "confidence required to accept a prediction", low=0, high=1)
    helpers: int = setting(2, "helper clients whose psi is sent to a client (H)", low=0)
    helper_every: int = setting(10, "rounds between updates of the helpers", low=1)
    share: float = setting(0.2, "psi at the start, as a share of sigma", low=0)
    zero: float = setting(5e-6, "psi below this counts as zero in predictions", low=0)
    delta: float = setting(5e-5, "changes up to this are not sent", low=0)
    uniform: bool = setting(True, "weight clients equally in the mean; false: as in federation.weighting")


class FedMatch(Method):
    name = "fedmatch"
    wants = frozenset({"x", "u_weak", "u_strong"})
    needs_labels = False
    undefined: ClassVar[Mapping[str, str]] = {}
    protocol: ClassVar[Mapping[str, object]] = {
        "partition.clients": 100,
        "federation.per_round": 5,
        "federation.rounds": 200,
        "train.epochs": 1,
        "train.batch": 10,
        "train.mu": 10,
        "train.epoch": "pass",
        "train.pool": "unlabelled",
    }
    sends: ClassVar[str] = "psi beside sigma; an embedding up (C numbers), at times psi of H clients down"
    keeps = "the sigma and psi it last sent"
    own_optimiser = "SGD with method.lr and method.momentum"
    Parameters = FedMatchParameters

    def refuses(self, addon: Addon) -> str:
        return "two halves of the weights are trained and averaged apart, so no single loss or classifier"

    def initial(self, weights: Tensors) -> Tensors:
        return joined(*decompose(weights, self.parameters.share))

    def model(self, weights: Mapping[str, Tensor]) -> Tensors:
        return compose(*halves(weights), self.parameters.zero)

    # On the client

    def begin(self, ctx: ClientContext) -> None:
        """The network's own parameters become sigma; psi and the helpers stand beside it."""
        sigma, psi = halves(ctx.task.weights)
        ctx.model.load_state_dict(sigma)
        parameters = dict(ctx.model.named_parameters())
        if extra := psi.keys() - parameters.keys():
            raise MethodError(f"fedmatch cannot split the buffers {sorted(extra)}: give them one dimension")
        # In the network's order, not a checkpoint's: sums over tensors are then the same to the bit.
        own = {name: torch.empty_like(value) for name, value in parameters.items() if name in psi}
        ctx.memory["psi"] = {name: value.copy_(psi[name]).requires_grad_() for name, value in own.items()}
        options = {"lr": self.parameters.lr, "momentum": self.parameters.momentum}
        ctx.memory["sigma optimiser"] = SGD(parameters.values(), **options)
        ctx.memory["psi optimiser"] = SGD(ctx.memory["psi"].values(), **options)
        lent = namespace(ctx.task.personal, self.name)
        count = len({name.split("/")[0] for name in lent})
        ctx.memory["helpers"] = [
            fold_batchnorm(ctx.model_from(joined(sigma, namespace(lent, str(k))))) for k in range(count)
        ]
        ctx.count("down_helpers", sum(int((x.abs() >= self.parameters.zero).sum()) for x in lent.values()))

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        """The two updates; a client without labelled or without unlabelled images makes one."""
        losses: dict[str, Tensor] = {}
        rows, pseudo = [batch.x.new_zeros((0, ctx.classes))], None
        if len(batch.x):
            rows += [self._sigma_logits(batch.x, ctx)]
            losses["supervised"] = self.parameters.supervised * F.cross_entropy(rows[-1], batch.y)
            descend(losses["supervised"], ctx.memory["sigma optimiser"])
        if len(batch.u_weak):
            rows += self._psi_logits(torch.cat([batch.u_weak, batch.u_strong]), ctx).chunk(2)
            weak, strong = rows[-2:]
            pseudo, helpers = self._vote(weak, batch, ctx)
            agreement = agreement_loss(strong, weak, pseudo.label, pseudo.mask, helpers)
            losses["agreement"] = self.parameters.agreement * agreement
            losses["penalty"] = self._penalty(ctx)
            descend(losses["agreement"] + losses["penalty"], ctx.memory["psi optimiser"])
        ctx.log(losses)
        return Outputs(batch, torch.cat(rows).detach(), None, ctx, pseudo)

    def finish(self, ctx: ClientContext) -> Tensors:
        """What to send: moved entries only. The embedding is that of the model as sent."""
        received, last = ctx.task.weights, ctx.state
        trained = joined(ctx.model.state_dict(), ctx.memory["psi"])
        sent: Tensors = {}
        for name, value in trained.items():
            half, old = name.split(".")[0], received[name]
            sent[name], up = sparse_delta(value.detach().cpu(), old, self.parameters.delta)
            down = sparse_delta(old, last[name], self.parameters.delta)[1] if last else old.numel()
            ctx.count(f"up_{half}", up)
            ctx.count(f"down_{half}", down)
        ctx.state = ctx.memory["sent"] = sent
        image = embedding_image(sample_shape(ctx.stream.data.images), ctx.seed).to(ctx.device)
        return {"embedding": ctx.predict(ctx.model_from(sent).eval(), image)[0]}

    def upload(self, ctx: ClientContext) -> Tensors:
        return dict(ctx.memory["sent"])

    def _sigma_logits(self, images: Tensor, ctx: ClientContext) -> Tensor:
        """A pass with psi fixed; it moves batch-norm statistics."""
        sigma = dict(ctx.model.named_parameters())
        theta = {name: sigma[name] + psi.detach() for name, psi in ctx.memory["psi"].items()}
        return _logits(theta, images, ctx)

    def _psi_logits(self, images: Tensor, ctx: ClientContext) -> Tensor:
        """A pass with all of sigma fixed, batch-norm statistics included: they are updated in a copy."""
        theta = {name: value.detach() for name, value in ctx.model.named_parameters()}
        theta |= {name: theta[name] + psi for name, psi in ctx.memory["psi"].items()}
        theta |= {name: value.clone() for name, value in ctx.model.named_buffers()}
        return _logits(theta, images, ctx)

    def _vote(self, weak: Tensor, batch: Batch, ctx: ClientContext) -> tuple[Pseudo, list[Tensor]]:
        local = weak.detach().softmax(1)
        helpers = [ctx.predict(helper, batch.u_weak) for helper in ctx.memory["helpers"]]
        pseudo = Pseudo(majority_vote(local, helpers), local.amax(1) >= self.parameters.confidence)
        ctx.show(batch.u_index, label=pseudo.label, mask=pseudo.mask)
        return pseudo, helpers

    def _penalty(self, ctx: ClientContext) -> Tensor:
        sigma, psi = dict(ctx.model.named_parameters()), ctx.memory["psi"]
        fixed = [sigma[name].detach() for name in psi]
        return decomposition_penalty(fixed, list(psi.values()), self.parameters.l2, self.parameters.l1)

    # On the server

    def prepare(self, ctx: ServerContext) -> None:
        ctx.train_own()

    def learn(self, batch: Batch, ctx: ClientContext) -> None:
        """A step of sigma: to FedMatch the server is a client without unlabelled images."""
        if not ctx.steps:
            self.begin(ctx)
        self.step(batch, ctx)

    def learned(self, ctx: ClientContext) -> Tensors:
        return detached(joined(ctx.model.state_dict(), ctx.memory["psi"]))

    def start(self, ctx: ServerContext) -> Tensors:
        return {"_clients": torch.zeros(0, dtype=torch.int64), "_embeddings": torch.zeros(0, ctx.classes)}

    def task_extras(self, ctx: ServerContext, client: int) -> Tensors:
        if ctx.store is None or ctx.round % self.parameters.helper_every:
            return {}
        known = namespace(ctx.extras, self.name)
        near = nearest_clients(known["_clients"], known["_embeddings"], client, self.parameters.helpers)
        lent: Tensors = {}
        for place, helper in enumerate(near):
            lent |= within(str(place), ctx.store.newest(helper, at_most=ctx.round - 1))
        return lent

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"embedding": (ctx.classes,)}

    def receive(self, update: Update) -> Tensors:
        return within("psi", halves(update.weights)[1]) | {"embedding": update.extras["fedmatch/embedding"]}

    def weight_of(self, update: Update, rule: float) -> float:
        return 1.0 if self.parameters.uniform else rule

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        known = namespace(ctx.extras, self.name)
        table = dict(zip(known["_clients"].tolist(), known["_embeddings"], strict=True))
        for client, tensors in zip(ctx.clients, kept, strict=True):
            table[client] = tensors["embedding"]
            if ctx.store is not None:
                ctx.store.save(client, ctx.round, namespace(tensors, "psi"))
        clients = sorted(table)
        return {"_clients": torch.tensor(clients), "_embeddings": torch.stack([table[k] for k in clients])}


def majority_vote(local: Tensor, helpers: Sequence[Tensor]) -> Tensor:
    """The class most often named by the rows of all models; of equals the first."""
    named = torch.stack([voter.argmax(1) for voter in (local, *helpers)])
    votes = named[:, :, None] == torch.arange(local.shape[1], device=local.device)
    return votes.sum(0).argmax(1)


def agreement_loss(
    strong_logits: Tensor, weak_logits: Tensor, label: Tensor, mask: Tensor, helpers: Sequence[Tensor]
) -> Tensor:
    """Phi: mean over all rows of mask × (H(label, strong) + mean_h KL(p_h || weak))."""
    losses = F.cross_entropy(strong_logits, label, reduction="none")
    weak = weak_logits.log_softmax(1)
    for helper in helpers:
        losses = losses + F.kl_div(weak, helper, reduction="none").sum(1) / len(helpers)
    return masked_mean(losses, mask)


def nearest_clients(clients: Tensor, embeddings: Tensor, client: int, count: int) -> list[int]:
    """The other clients with the nearest embeddings, nearest first; none for a client without one."""
    ids = clients.tolist()
    if client not in ids:
        return []
    rows = embeddings.double()
    distances = torch.linalg.vector_norm(rows - rows[ids.index(client)], dim=1).tolist()
    return [other for _, other in sorted(zip(distances, ids, strict=True)) if other != client][:count]


def embedding_image(shape: Sequence[int], seed: int) -> Tensor:
    """One image of truncated Gaussian noise (mean 125, std 125, 0 to 255), scaled to 0..1."""
    low, high = torch.special.ndtr(torch.tensor([-125 / 125, (255 - 125) / 125], dtype=torch.float64))
    draws = torch.rand(1, *shape, dtype=torch.float64, generator=rng(seed, 0, SERVER, "fedmatch embedding"))
    noise: Tensor = 125 + 125 * torch.special.ndtri(low + (high - low) * draws)
    return (noise / 255).float()


def _logits(theta: Tensors, images: Tensor, ctx: ClientContext) -> Tensor:
    with span(FORWARD), ctx.autocast():
        logits: Tensor = functional_call(ctx.model, theta, (images,))
    return logits.float()


register(
    Recipe("fedmatch", "two halves of the weights, for labelled and unlabelled; helpers vote", FedMatch),
    Shown("federated SSL", 34, "orange", "dashed", "X"),
)
