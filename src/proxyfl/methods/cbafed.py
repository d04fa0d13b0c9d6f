"""CBAFed (Li et al., CVPR 2023): some clients have labels, the others none; thresholds balance the classes.

The server counts the labels and pseudo-labels of each class over all clients that it has met. A class that is
frequent there has a higher threshold, a rare one a lower threshold, and rare runners-up are trusted::

    p(c)   = share of class c in all counts * C / 10
    tau_c  = min(tau, p(c) + base - std(p))                  std with n - 1
    yhat_i = first_i   if pG(first_i) > tau_first_i          first, second: the likeliest classes of weak u_i
             second_i  if not, and p(second_i) < rare;       otherwise the image is left out

Once a round the global model labels the whole pool of a client. Clients train with the cross entropy of weak
views, of labelled images where they have labels and of the kept ones where they have none. Labelled clients
weigh in the mean by their images, the others by the kept ones. Old weights are mixed in (residual weight
connection), at labelled clients every few epochs and at the server every few rounds::

    w     <- 4/5 w(some epochs ago) + 1/5 w
    Theta <- 1/2 Theta(some rounds ago) + 1/2 Theta

In the first rounds (``warmup``) labelled clients train alone.

Deviations: by default the shared protocol instead of its own (``--protocol own``), the same epochs and
learning rate for both kinds of clients, and a short warm-up; in the release, one of 501 epochs before the
first round. With 5 local epochs old weights are not mixed in at clients: the first are those after epoch 1,
and 5 more must follow. Not all clients take part in a round: the server keeps the counts of each until it is
in the mean again. A client that keeps no image sits out. Batches have ``train.mu`` times ``train.batch``
unlabelled images, drawn in other views than those that were labelled, and an epoch is one pass without its
incomplete last batch. Momentum ends with the round unless ``train.keep_momentum`` says otherwise, as its own
protocol does. With add-ons that look at weak views, clients without labels draw batches from the whole pool,
for these; the loss is the mean over kept images, as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.core.dealing import CLIENTS, SERVER
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update, namespace, within
from proxyfl.methods.base import Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.losses import masked_cross_entropy
from proxyfl.methods.registry import Recipe, Shown, register

AT_CLIENTS, AT_SERVER = 0.8, 0.5
"""Shares of the old weights where these are mixed in."""


@dataclass(frozen=True)
class CBAFedParameters(MethodParameters):
    """Parameters of CBAFed."""

    tau: float = setting(0.95, "highest threshold of a class, also used by add-ons", low=0, high=1)
    strict: bool = setting(True, "for add-ons, confidence must exceed tau (true) or reach it (false)")
    base: float = setting(0.84, "base threshold of a class, to which its share is added", low=0, high=1)
    rare: float = setting(0.03, "share below which a class is rare", low=0)
    warmup: int = setting(3, "first rounds, in which only labelled clients train", low=0)
    unlabelled_epochs: int = setting(0, "epochs of clients without labels; 0: same as train.epochs", low=0)
    unlabelled_lr: float = setting(1.0, "learning rate of these clients, as a multiple of train.lr", low=0)
    residual_epochs: int = setting(
        5, "epochs after which labelled clients mix in old weights; 0: never", low=0
    )
    residual_rounds: int = setting(5, "rounds after which the server mixes in old weights; 0: never", low=0)


class CBAFed(Method):
    name = "cbafed"
    wants = frozenset({"x", "u_weak"})
    undefined: ClassVar[Mapping[str, str]] = {
        CLIENTS: "it needs clients that have labels for all their images or for none",
        SERVER: "it warms up on labelled images at clients, which have none",
    }
    protocol: ClassVar[Mapping[str, object]] = {
        "labels.where": "partial",
        "labels.clients": 1,
        "partition.scheme": "dirichlet",
        "partition.alpha": 0.8,
        "partition.clients": 10,
        "federation.per_round": 10,
        "federation.rounds": 547,
        "model.name": "resnet18",
        "train.epochs": 11,
        "train.batch": 64,
        "train.mu": 1,
        "train.lr": 0.03,
        "train.momentum": 0.9,
        "train.weight_decay": 5e-4,
        "train.max_grad_norm": 5.0,
        "train.keep_momentum": "clients",
        "method.warmup": 46,
        "method.unlabelled_epochs": 1,
        "method.unlabelled_lr": 2 / 3,
    }
    protocol_on: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "svhn": {"method.tau": 0.9},
        "cifar100": {"federation.rounds": 1092, "method.warmup": 91},
    }
    needs_labels = False
    walks_labelled = True
    shows_steps = False
    sends: ClassVar[str] = "class counts up, class shares down (C numbers each)"
    counts = ("counts",)
    Parameters = CBAFedParameters

    # On the client

    def begin(self, ctx: ClientContext) -> None:
        labels = ctx.stream.data.labels
        ctx.memory |= {"labelled": bool(len(labels)), "counts": torch.bincount(labels, minlength=ctx.classes)}
        if len(labels):
            ctx.stream.restrict(torch.arange(0))
        elif ctx.task.round <= self.parameters.warmup:
            ctx.stream.steps = 0
        else:
            self._label_pool(ctx)

    def _label_pool(self, ctx: ClientContext) -> None:
        train, own = ctx.settings, self.parameters
        ctx.settings = replace(
            train, epochs=own.unlabelled_epochs or train.epochs, lr=own.unlabelled_lr * train.lr
        )
        size, shares = train.batch * train.mu, ctx.extras["cbafed/shares"]
        found = ctx.pool_predictions
        thresholds = class_thresholds(shares, own.base, own.tau)
        label, kept = balanced_labels(found, thresholds, shares, own.rare)
        chosen = kept.nonzero()[:, 0]
        ctx.memory |= {"label": label, "kept": kept}
        ctx.memory["counts"] = torch.bincount(label[chosen].cpu(), minlength=ctx.classes)
        whole = any("u_weak" in addon.wants for addon in self.addons)
        if not whole:
            ctx.stream.restrict(chosen)
        ctx.stream.steps = max(1, (len(kept) if whole else len(chosen)) // size) if len(chosen) else 0

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        index = outputs.batch.u_index
        return Pseudo(ctx.memory["label"][index], ctx.memory["kept"][index])

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        if outputs.pseudo is None:
            return {}
        label, kept = outputs.pseudo.label, outputs.pseudo.mask
        return {"unlabelled": masked_cross_entropy(outputs.weak, label, kept, "selected")}

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        """After each epoch of a labelled client."""
        every = self.parameters.residual_epochs
        if not every or not ctx.memory["labelled"] or ctx.steps % ctx.stream.steps:
            return
        if ctx.epoch == 0:
            ctx.memory["old"] = {name: value.clone() for name, value in ctx.model.state_dict().items()}
        elif ctx.epoch % every == 0:
            ctx.memory["old"] = mixed(ctx.memory["old"], ctx.model.state_dict(), AT_CLIENTS)
            ctx.model.load_state_dict(ctx.memory["old"])

    def finish(self, ctx: ClientContext) -> Tensors:
        if "kept" in ctx.memory:
            ctx.epoch = ctx.settings.epochs - 1  # who keeps nothing has no last epoch to note that in
            pool = torch.arange(len(ctx.memory["kept"]), device=ctx.device)
            ctx.show(pool, label=ctx.memory["label"], mask=ctx.memory["kept"])
        return {"counts": ctx.memory["counts"].float()}

    # On the server

    def start(self, ctx: ServerContext) -> Tensors:
        known = {"_clients": torch.zeros(0, dtype=torch.int64), "_counts": torch.zeros(0, ctx.classes)}
        shares = class_shares(torch.ones(ctx.classes))
        return {"shares": shares, **known, **self._kept(ctx.weights)}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"counts": (ctx.classes,)}

    def receive(self, update: Update) -> Tensors:
        return {"counts": update.extras["cbafed/counts"]}

    def weight_of(self, update: Update, rule: float) -> float:
        return float(update.extras["cbafed/counts"].sum())

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        known = namespace(ctx.extras, self.name)
        table = dict(zip(known["_clients"].tolist(), known["_counts"], strict=True))
        table |= {client: tensors["counts"] for client, tensors in zip(ctx.clients, kept, strict=True)}
        clients = sorted(table)
        counts = torch.stack([table[client] for client in clients])
        shares = class_shares(counts.sum(0))
        ctx.metrics["class_shares"] = shares.tolist()
        return {"shares": shares, "_clients": torch.tensor(clients), "_counts": counts, **self._residual(ctx)}

    def _residual(self, ctx: ServerContext) -> Tensors:
        """Mix the kept weights in where it is time for that; those to keep from now on."""
        every, since = self.parameters.residual_rounds, ctx.round - self.parameters.warmup
        if not every or (since > 0 and since % every):
            return {}
        if since > 0:
            old = namespace(ctx.extras, f"{self.name}/_old")
            ctx.weights = mixed(old, ctx.weights, AT_SERVER)
        return self._kept(ctx.weights)

    def _kept(self, weights: Tensors) -> Tensors:
        return within("_old", weights) if self.parameters.residual_rounds else {}


def class_shares(counts: Tensor) -> Tensor:
    """Of each class in the counts, as among ten classes."""
    return counts / counts.sum().clamp(min=1) * (len(counts) / 10)


def class_thresholds(shares: Tensor, base: float, highest: float) -> Tensor:
    """Higher for frequent classes, and lower for all where shares differ much."""
    return (shares + base - shares.std()).clamp(max=highest)


def balanced_labels(
    probabilities: Tensor, thresholds: Tensor, shares: Tensor, rare: float
) -> tuple[Tensor, Tensor]:
    """Labels of the rows and whether they are kept: beyond the threshold the likeliest class, else the second
    where that is rare.
    """
    best, order = probabilities.topk(2, dim=1)
    first, second = order.unbind(1)
    sure = best[:, 0] > thresholds[first]
    promoted = ~sure & (shares[second] < rare)
    return torch.where(promoted, second, first), sure | promoted


def mixed(old: Mapping[str, Tensor], new: Mapping[str, Tensor], share: float) -> Tensors:
    """``share`` of the old weights and the rest of the new; whole numbers as the new have them."""
    return {
        name: share * old[name] + (1 - share) * value if value.is_floating_point() else value
        for name, value in new.items()
    }


register(
    Recipe(
        "cbafed", "labels at some clients, thresholds that balance the classes, old weights mixed in", CBAFed
    ),
    Shown("labels at some clients", 70, "green", "dotted", "o"),
)
