"""GPL-ALL with corrected labels: an oracle for what unsure images are worth (Chen and Wang, CVPR 2026).

Every unlabelled image trains with the label of the global model, sure or not. Of the images that the model is
unsure of, a share has the label replaced by the true one::

    yhat_i = y_i if conf(pG_i) < tau and u_i < corrected else argmax pG_i
    Lu     = mean_i H(yhat_i, p(strong(u_i)))          loss = Ls + weight * Lu

``u_i`` in [0, 1) is drawn for each client and image from the seed, once for all rounds: an image that is
corrected at one share is corrected at every larger one, so that curves of several shares differ in nothing
else. With ``corrected = 0`` it is GPL-ALL.

Deviations: the paper names the shares of its figure but not how the images are chosen. Here they are chosen
from the whole pool, and the rounds count how many unsure images there were and how many were corrected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from proxyfl.core.rng import rng
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.fixmatch import FixMatch, PseudoLabelParameters
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class CorrectedParameters(PseudoLabelParameters):
    """Parameters of label-corrected training."""

    corrected: float = setting(
        1.0, "share of the unconfident images that train with their true label", low=0, high=1
    )


class Corrected(FixMatch):
    name = "gpl-all-corrected"
    oracle: ClassVar[bool] = True
    Parameters: ClassVar[type[Any]] = CorrectedParameters

    def begin(self, ctx: ClientContext) -> None:
        draws = torch.rand(len(ctx.truth), generator=rng(ctx.seed, 0, ctx.task.client, "corrected"))
        ctx.memory["chosen"] = (draws < self.parameters.corrected).to(ctx.device)
        ctx.memory["counts"] = torch.zeros(2, device=ctx.device)

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        index, own = outputs.batch.u_index, outputs.global_weak.argmax(1)
        unsure = ~self.confident(outputs.global_weak)
        corrected = unsure & ctx.memory["chosen"][index]
        ctx.memory["counts"] += torch.stack([unsure.sum(), corrected.sum()])
        label = torch.where(corrected, ctx.truth[index], own)
        return Pseudo(label, torch.ones_like(unsure), scores=outputs.global_weak)

    def finish(self, ctx: ClientContext) -> Tensors:
        unsure, corrected = ctx.memory["counts"].tolist()
        ctx.count("unsure", unsure)
        ctx.count("corrected", corrected)
        return {}


register(
    Recipe("gpl-all-corrected", "FixMatch-GPL, unsure images with corrected labels (oracle)", Corrected),
    Shown("FixMatch", 26, "blue", "dash-dot", "v", page="corrected"),
)
