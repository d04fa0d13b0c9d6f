"""FixMatch (Sohn et al., NeurIPS 2020) on every client, with federated averaging.

An unlabelled image whose weak view is predicted with confidence teaches its strong view that label. The
teacher is the local model being trained (LPL) or the frozen global model of the round's start (GPL)::

    yhat_i = argmax p_i,   mask_i = [max p_i >= tau],   p = pL or pG on the weak view
    Lu     = mean_i mask_i H(yhat_i, p(strong(u_i)))          loss = Ls + weight * Lu

``mask`` may look at another model than the teacher: ``either`` trusts an image when the local or the
global model is confident, as ProxyFL's released program does; ``all`` trusts every image (the paper's
GPL-ALL and LPL-ALL).

Deviations: none from the method but for the federated setting; optimiser and batches are the shared
protocol's. The local teacher predicts in the same training-mode pass; ``teacher_mode = "eval"`` gives it a
pass of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.methods.base import Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.losses import masked_cross_entropy
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class PseudoLabelParameters(MethodParameters):
    """Parameters of every method that trains on pseudo-labels."""

    weight: float = setting(1.0, "weight of the unlabelled loss (lambda_u, alpha)", low=0)
    over: str = setting(
        "batch",
        "divide the unlabelled loss by all images of the batch, or by the selected ones",
        choices=("batch", "selected"),
    )


@dataclass(frozen=True)
class FixMatchParameters(PseudoLabelParameters):
    """Parameters of FixMatch."""

    teacher: str = setting(
        "local", "model that gives the pseudo-label: local or global", choices=("local", "global")
    )
    mask: str = setting(
        "local", "whose confidence selects an image", choices=("local", "global", "either", "all")
    )
    teacher_mode: str = setting(
        "train",
        "batch norm of the local teacher: train = same pass; eval = a separate pass",
        choices=("train", "eval"),
    )


class FixMatch(Method):
    name = "fixmatch"
    wants = frozenset({"x", "u_weak", "u_strong"})
    needs_labels = False
    takes_masks: ClassVar[bool] = True
    undefined: ClassVar[Mapping[str, str]] = {}  # without labels a client trains on pseudo-labels alone
    Parameters: ClassVar[type[Any]] = FixMatchParameters

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        rule, teacher = self.parameters.mask, self.parameters.teacher
        local = self._local(outputs, ctx)
        scores = outputs.global_weak if teacher == "global" else local
        label = scores.argmax(1)
        if rule == "all":
            mask = torch.ones_like(label, dtype=torch.bool)
        elif rule == "either":
            mask = self.confident(local) | self.confident(outputs.global_weak)
        else:
            mask = self.confident(outputs.global_weak if rule == "global" else local)
        return Pseudo(label, mask, scores=scores)

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        if outputs.pseudo is None:
            return {}
        loss = self.unlabelled_loss(outputs.strong, outputs.pseudo)
        return {"unlabelled": self.parameters.weight * loss}

    def record_losses(self, outputs: Outputs, ctx: ClientContext) -> tuple[Tensor, Tensor]:
        own, none = super().record_losses(outputs, ctx)
        if outputs.pseudo is None:
            return own, none
        each = F.cross_entropy(outputs.strong, outputs.pseudo.label, reduction="none")
        return own, self.parameters.weight * outputs.pseudo.trust * each

    def unlabelled_loss(self, strong: Tensor, pseudo: Pseudo) -> Tensor:
        return masked_cross_entropy(strong, pseudo.label, pseudo.trust, self.parameters.over)

    def _local(self, outputs: Outputs, ctx: ClientContext) -> Tensor:
        if self.parameters.teacher_mode == "train":
            return outputs.local_weak
        ctx.model.eval()
        probabilities = ctx.predict(ctx.model, outputs.batch.u_weak)
        ctx.model.train()
        return probabilities


_GLOBAL = {"teacher": "global", "mask": "global"}
register(
    Recipe("fixmatch-lpl", "FixMatch, pseudo-labels from the local model", FixMatch),
    Shown("FixMatch", 20, "sky", "solid", "s", page="fixmatch"),
    aliases=["fixmatch"],
)
register(
    Recipe("fixmatch-gpl", "FixMatch, pseudo-labels from the global model", FixMatch, defaults=_GLOBAL),
    Shown("FixMatch", 24, "blue", "solid", "D", page="fixmatch"),
)
register(
    Recipe("lpl-all", "FixMatch-LPL without a threshold", FixMatch, defaults={"mask": "all"}),
    Shown("FixMatch", 23, "sky", "dotted", "X", page="fixmatch"),
)
register(
    Recipe("gpl-all", "FixMatch-GPL without a threshold", FixMatch, defaults=_GLOBAL | {"mask": "all"}),
    Shown("FixMatch", 25, "blue", "dotted", "P", page="fixmatch"),
)
register(
    Recipe("fedprox+fixmatch", "FixMatch-LPL with a proximal term", FixMatch, ("prox",)),
    Shown("FixMatch", 21, "sky", "dashed", "<", page="fedprox"),
    aliases=["fixmatch-lpl+prox", "fixmatch+prox"],
)
register(
    Recipe("proto", "FixMatch-GPL with class prototypes", FixMatch, ("proto",), defaults=_GLOBAL),
    Shown("prototypes", 40, "purple", "solid", "p"),
)
register(
    Recipe(
        "proto-all",
        "prototypes of every image, including unconfident ones",
        FixMatch,
        ("proto",),
        defaults=_GLOBAL | {"proto": {"assign": "all"}},
    ),
    Shown("prototypes", 41, "purple", "dotted", "h", page="proto"),
)
register(
    Recipe(
        "proto-labeled",
        "prototypes of labelled images only",
        FixMatch,
        ("proto",),
        defaults=_GLOBAL | {"proto": {"assign": "labelled"}},
    ),
    Shown("prototypes", 42, "purple", "dashed", "d", page="proto"),
)
register(
    Recipe("freematch", "FixMatch with self-adaptive thresholds", FixMatch, ("freematch",)),
    Shown("FixMatch", 27, "sky", "long-dash", "d"),
)
register(
    Recipe("softmatch", "FixMatch with soft sample weights", FixMatch, ("softmatch",)),
    Shown("FixMatch", 28, "blue", "dash-dot-dot", "^"),
)
