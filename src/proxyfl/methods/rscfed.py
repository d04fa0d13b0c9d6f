"""RSCFed (Liang et al., CVPR 2022): some clients have labels, the others none; means of random subsets.

Clients with labels minimise the cross entropy of weak views. The others follow a teacher of their own, a
moving average of their model that stays with them. It sees one weak view, the model another one; t counts the
client's own steps, q is the teacher's prediction, sharpened with temperature T::

    teacher <- a teacher + (1 - a) w,   a = min(1 - 1 / (t + 1), keep)
    q       = p_teacher(weak u)^(1/T), normalised
    Lu      = weight * sum over images and classes of (p(weak' u) - q)² / batch

The server draws ``subsets`` subsets of the round's clients. A client trains once for each subset that it is
in, every time from the weights received; its teacher goes on from one training to the next. In each subset an
update far from the mean of the subset counts less (distance-reweighted aggregation), and the new weights are
the mean of those of the subsets::

    d_i = sum over tensors of |w_i - mean|,   mean with weights b_i = n_i, times ``times`` with labels
    g_i ∝ b_i exp(-s d_i / n_i),   s = ``scale`` in subsets with a labelled client, else ``scale_unlabelled``

In the first rounds (``warmup``) labelled clients train alone, once each, as one subset.

Deviations: by default the shared protocol instead of its own (``--protocol own``), and a short warm-up.
Subsets are drawn from the clients of the round. The release multiplies the weight of labelled clients twice
(``twice``; fidelity "code") and leaves the teacher's batch-norm statistics as they were when it was made
(``statistics``); here they are those of the model that the client received. The loss of unlabelled images
does not rise slowly at the start. Batches have ``train.mu`` times ``train.batch`` unlabelled images, and an
epoch is one pass without its incomplete last batch. Momentum ends with each training unless
``train.keep_momentum`` says otherwise, as its own protocol does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from proxyfl.core.dealing import CLIENTS, SERVER
from proxyfl.core.errors import UpdateRefused
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update, namespace, within
from proxyfl.methods.base import Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class RSCFedParameters(MethodParameters):
    """Parameters of RSCFed."""

    weight: float = setting(0.02, "weight of the loss on unlabelled images", low=0)
    temperature: float = setting(0.5, "temperature of sharpening; 1: none", low=0.01, high=1)
    keep: float = setting(0.999, "highest share of the teacher kept each step", low=0, high=1)
    statistics: str = setting(
        "received",
        "batch-norm statistics of the teacher: of the model received this round, or of the first one",
        choices=("received", "first"),
        code="first",
    )
    warmup: int = setting(3, "first rounds, in which only labelled clients train", low=0)
    unlabelled_lr: float = setting(
        1.0, "learning rate of clients without labels, as a multiple of train.lr", low=0
    )
    subsets: int = setting(3, "subsets of clients per round", low=1, high=1000)
    subset_size: int = setting(5, "clients per subset, or all of the round if there are fewer", low=1)
    once: bool = setting(
        False, "a client trains once per round for all of its subsets; false: once for each of them"
    )
    scale: float = setting(100.0, "effect of distance in a subset with a labelled client", low=0)
    scale_unlabelled: float = setting(1e4, "effect of distance in a subset without one", low=0)
    times: float = setting(6.0, "factor for the images of a labelled client", low=1e-3)
    twice: bool = setting(False, "apply that factor again after distances are computed", code=True)


class RSCFed(Method):
    name = "rscfed"
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
        "federation.rounds": 1000,
        "model.name": "cnn",
        "train.epochs": 1,
        "train.batch": 64,
        "train.mu": 1,
        "train.lr": 0.03,
        "train.momentum": 0.9,
        "train.weight_decay": 5e-4,
        "train.max_grad_norm": 5.0,
        "train.keep_momentum": "clients",
        "method.warmup": 7,
        "method.unlabelled_lr": 0.7,
    }
    needs_labels = False
    walks_labelled = True
    needs_all_updates = True
    shows_steps = False
    sends: ClassVar[str] = "weights once for each subset of a client; whether it has labels, up (1 number)"
    keeps = "the teacher of a client without labels (a network), and its number of steps"
    Parameters = RSCFedParameters

    # On the client

    def begin(self, ctx: ClientContext) -> None:
        ctx.memory["labelled"] = bool(len(ctx.stream.data.labels))
        if ctx.memory["labelled"]:
            ctx.stream.restrict(torch.arange(0))
        elif ctx.task.round <= self.parameters.warmup:
            ctx.stream.steps = 0
        else:
            ctx.settings = replace(ctx.settings, lr=self.parameters.unlabelled_lr * ctx.settings.lr)
            ctx.stream.steps = max(1, len(ctx.stream.pool) // self._size(ctx))
            ctx.memory["teacher"] = self._teacher(ctx)
            ctx.state.setdefault("steps", torch.zeros((), dtype=torch.int64))

    def _size(self, ctx: ClientContext) -> int:
        return ctx.settings.batch * ctx.settings.mu

    def _teacher(self, ctx: ClientContext) -> nn.Module:
        """As it was kept, or the model received; its buffers are never averaged."""
        network = ctx.model_from(ctx.task.weights)
        kept = namespace(ctx.state, "teacher")
        network.load_state_dict({name: value.to(ctx.device) for name, value in kept.items()}, strict=False)
        return network.eval()

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        index = outputs.batch.u_index
        found = ctx.predict(ctx.memory["teacher"], ctx.stream.weak_views(index))
        target = sharpen(found, self.parameters.temperature)
        label = target.argmax(1)
        ctx.show(index, label=label, mask=torch.ones_like(label, dtype=torch.bool))
        return Pseudo(label, self.confident(found), target)

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        if outputs.pseudo is None or outputs.pseudo.target is None:
            return {}
        apart = (outputs.weak.softmax(1) - outputs.pseudo.target).square().sum()
        return {"unlabelled": self.parameters.weight * apart / self._size(ctx)}

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        if "teacher" not in ctx.memory:
            return
        steps = ctx.state["steps"]
        share = min(1 - 1 / (int(steps) + 1), self.parameters.keep)
        for mine, theirs in zip(ctx.memory["teacher"].parameters(), ctx.model.parameters(), strict=True):
            mine.mul_(share).add_(theirs, alpha=1 - share)
        ctx.state["steps"] = steps + 1

    def finish(self, ctx: ClientContext) -> Tensors:
        if "teacher" in ctx.memory:
            first = self.parameters.statistics == "first"
            network: nn.Module = ctx.memory["teacher"]
            kept = network.state_dict() if first else dict(network.named_parameters())
            ctx.state |= within("teacher", {name: value.detach().cpu() for name, value in kept.items()})
        return {"labelled": torch.tensor([float(ctx.memory["labelled"])])}

    # On the server

    @property
    def most_trainings(self) -> int:  # type: ignore[override]
        return 1 if self.parameters.once else int(self.parameters.subsets)

    def trainings(self, ctx: ServerContext, clients: Sequence[int]) -> list[int]:
        """One for each subset that a client is in, or ``once``."""
        own, subsets = self.parameters, [list(range(len(clients)))]
        if ctx.round > own.warmup:
            subsets = draw_subsets(len(clients), own.subsets, own.subset_size, ctx.rng("subsets"))
        ctx.memory["subsets"] = [[clients[place] for place in members] for members in subsets]
        drawn = Counter(place for members in subsets for place in members)
        return [1 if own.once else drawn[place] for place in range(len(clients))]

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"labelled": (1,)}

    def receive(self, update: Update) -> Tensors:
        labelled = update.extras["rscfed/labelled"]
        if float(labelled) not in (0.0, 1.0):
            raise UpdateRefused("it must say with 0 or 1 whether it has labels")
        return {"labelled": labelled}

    def weight_of(self, update: Update, rule: float) -> float:
        resting = update.round <= self.parameters.warmup and not float(update.extras["rscfed/labelled"])
        return 0.0 if resting else rule

    def weights(self, ctx: ServerContext, kept: Sequence[Tensors]) -> list[float]:
        own, subsets = self.parameters, self._places(ctx)
        labelled = torch.tensor([float(tensors["labelled"]) for tensors in kept], dtype=torch.float64)
        samples = torch.tensor(ctx.samples, dtype=torch.float64)
        times = torch.where(labelled > 0, own.times, 1.0).double()
        total = torch.zeros(len(kept), dtype=torch.float64)
        for members in subsets:
            base = samples[members] * times[members]
            far = distances(ctx.updates, members, base)
            scale = own.scale if bool(labelled[members].any()) else own.scale_unlabelled
            logits = base.log() - scale * far / samples[members]
            if own.twice:
                logits += times[members].log()
            total[members] += logits.softmax(0) / len(subsets)
        ctx.metrics["client_weights"] = total.tolist()
        return total.tolist()

    def _places(self, ctx: ServerContext) -> list[list[int]]:
        """Which updates are in each subset. Who failed is missing, and a subset of nobody is none; where that
        leaves no subset, all updates are one.
        """
        left: dict[int, list[int]] = {}
        for place, client in enumerate(ctx.clients):
            left.setdefault(client, []).append(place)
        found = []
        for members in ctx.memory["subsets"]:
            here = [left[client] for client in members if client in left]
            found.append([places[0] if self.parameters.once else places.pop(0) for places in here])
        return [places for places in found if places] or [list(range(len(ctx.clients)))]


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Rows raised to 1 / temperature and normalised again."""
    powers = probabilities.pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def draw_subsets(count: int, subsets: int, size: int, generator: torch.Generator) -> list[list[int]]:
    """Subsets of ``count`` clients, each without repetition."""
    return [torch.randperm(count, generator=generator)[:size].tolist() for _ in range(subsets)]


def distances(updates: Sequence[Tensors], members: Sequence[int], base: Tensor) -> Tensor:
    """Of the members' updates from their mean with weights ``base``, as a sum over tensors. One update is in
    memory at a time.
    """
    mean: Tensors = {}
    for place, share in zip(members, (base / base.sum()).tolist(), strict=True):
        for name, value in _floating(updates[place]).items():
            mean[name] = mean.get(name, 0.0) + share * value
    found = []
    for place in members:
        apart = [(value - mean[name]).norm() for name, value in _floating(updates[place]).items()]
        found.append(torch.stack(apart).sum())
    return torch.stack(found)


def _floating(tensors: Tensors) -> Tensors:
    return {name: value.double() for name, value in tensors.items() if value.is_floating_point()}


register(
    Recipe("rscfed", "labels at some clients, the others follow teachers; means of random subsets", RSCFed),
    Shown("labels at some clients", 71, "green", "long-dash", "s"),
)
