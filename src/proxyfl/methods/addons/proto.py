"""Class prototypes after FedProto (Tan et al., AAAI 2022), beside a semi-supervised method.

A prototype is the mean feature of a class. Clients are pulled to the federation's prototypes and send their
own back; the server averages them over the clients that have the class::

    Lproto = mean_i || z_i - prototype_y(i) ||^2 / d   (zero for classes without a prototype; in round 1)
    client prototype of c = mean of z over its images of class c in the last local epoch
    server prototype of c = plain mean over clients that have c    (``by_count``: weighted by how many)

Which images belong to a class is ``assign``: ``confident`` (labelled ones and trusted pseudo-labels),
``all`` (every image, by the global model's label) or ``labelled``. The loss acts on the same images that make
the prototypes: labelled and weak views. A class that no client met keeps its prototype.

Deviations: FedProto trains with labels only and sends prototypes instead of weights; here weights are sent
and averaged too. The paper under comparison does not say which images the term acts on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.core.dealing import SERVER
from proxyfl.core.errors import MethodError
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ClientContext, Outputs, ServerContext
from proxyfl.methods.registry import register_addon


@dataclass(frozen=True)
class ProtoParameters:
    """Parameters of prototypes."""

    weight: float = setting(1.0, "weight of the prototype loss", low=0)
    assign: str = setting(
        "confident",
        "images with a class: labelled and confident ones, all, or labelled only",
        choices=("confident", "all", "labelled"),
    )
    by_count: bool = setting(False, "weight clients' prototypes by their number of images")


@register_addon
class Proto(Addon):
    name = "proto"
    wants = frozenset({"x", "u_weak"})
    sends = "prototypes both ways (C × d numbers), class counts up, flags of known classes down (C each)"
    counts = ("counts",)
    Parameters = ProtoParameters

    def refusal(self, where: str) -> str:
        labelled = where == SERVER and self.parameters.assign == "labelled"
        return "its prototypes need labelled images at the clients" if labelled else ""

    def start(self, ctx: ServerContext) -> Tensors:
        if "classifier.weight" not in ctx.weights:
            raise MethodError("prototypes need a network whose last layer is called classifier and trained")
        shape = ctx.weights["classifier.weight"].shape
        return {"prototypes": torch.zeros(shape), "present": torch.zeros(shape[0], dtype=torch.bool)}

    def begin(self, ctx: ClientContext) -> None:
        ctx.memory["proto"] = None

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        features, labels = self._assigned(outputs)
        prototypes, present = ctx.extras["proto/prototypes"], ctx.extras["proto/present"]
        return prototype_loss(features, labels, prototypes, present) * float(self.parameters.weight)

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        if ctx.last_epoch:
            features, labels = self._assigned(outputs)
            sums, counts = class_means(features.detach(), labels, ctx.classes)
            seen = ctx.memory["proto"]
            ctx.memory["proto"] = (sums, counts) if seen is None else (seen[0] + sums, seen[1] + counts)

    def finish(self, ctx: ClientContext) -> Tensors:
        sums, counts = ctx.memory["proto"]
        return {"means": sums / counts.clamp(min=1)[:, None], "counts": counts}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        shape = tuple(ctx.weights["classifier.weight"].shape)
        return {"means": shape, "counts": shape[:1]}

    def receive(self, update: Update) -> Tensors:
        return {name: update.extras[f"proto/{name}"] for name in ("means", "counts")}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        means, counts = (torch.stack([tensors[name] for tensors in kept]) for name in ("means", "counts"))
        prototypes, found = merge_prototypes(means, counts, self.parameters.by_count)
        old, known = ctx.extras["proto/prototypes"], ctx.extras["proto/present"]
        return {"prototypes": torch.where(found[:, None], prototypes, old), "present": found | known}

    def _assigned(self, outputs: Outputs) -> tuple[Tensor, Tensor]:
        """Features and classes of the images, -1 for one without a class: none is left out, so no step waits
        to learn how many there are.
        """
        if outputs.features is None:
            raise MethodError("prototypes need a network with features(x) and classifier")
        labelled = outputs.labelled_rows
        x, weak = outputs.features[:labelled], outputs.features[labelled : labelled + len(outputs.weak)]
        if self.parameters.assign == "labelled" or outputs.pseudo is None:
            return x, outputs.batch.y
        label = outputs.pseudo.label
        if self.parameters.assign == "confident":
            label = torch.where(outputs.pseudo.mask, label, -1)
        else:
            label = outputs.global_weak.argmax(1)
        return torch.cat([x, weak]), torch.cat([outputs.batch.y, label])


def prototype_loss(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Mean over rows of the mean squared distance to the prototype of the row's class, where it exists.

    Rows without a class (-1) do not count.
    """
    known, place = labels >= 0, labels.clamp(min=0)
    errors = (features - prototypes[place]).square().mean(1)
    return (errors * (present[place] & known)).sum() / known.sum().clamp(min=1)


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sums (classes × d) and counts (classes) of the rows of each class; -1 is none."""
    member = (labels[:, None] == torch.arange(classes, device=labels.device)).to(features.dtype)
    return member.T @ features, member.sum(0)


def merge_prototypes(means: Tensor, counts: Tensor, by_count: bool = False) -> tuple[Tensor, Tensor]:
    """The clients' prototypes (M × C × d) as one (C × d), and which classes any client has."""
    weights = counts if by_count else (counts > 0).to(means.dtype)
    total = weights.sum(0)
    merged = (weights[:, :, None] * means).sum(0) / total.clamp(min=1e-12)[:, None]
    return merged, total > 0
