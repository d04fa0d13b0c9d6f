"""FlexMatch (Zhang et al., NeurIPS 2021) on every client: a threshold per class that follows learning.

A class of which few images were trusted so far is hard, so its threshold is lowered. Each client remembers
the last class it trusted for each image; the counts over that memory decide the thresholds::

    n(c) = #{i : last(i) = c},   n(-1) = images never trusted
    beta(c) = n(c) / max(max_c n(c), n(-1))       with warm-up (default); without: n(c) / max_c n(c)
    tau_c   = tau * beta / (2 - beta)
    mask_i  = [conf(p_i) >= tau_lab(p_i)];   last(i) <- lab(p_i) where conf(p_i) >= tau

Thresholds come from the memory before the step's own update. They begin near zero, so early rounds accept
almost everything; the paper under comparison reports a collapse on SVHN, which this can reproduce.

Deviations: none known from the published code but for the federated setting: every client has a memory and
thresholds of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.fixmatch import FixMatch, PseudoLabelParameters
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class FlexMatchParameters(PseudoLabelParameters):
    """Parameters of FlexMatch."""

    teacher: str = setting(
        "local", "model that gives the pseudo-label: local or global", choices=("local", "global")
    )
    warmup: bool = setting(True, "count images that were never selected when thresholds are computed")
    memory: str = setting(
        "rounds",
        "rounds: a client keeps its state between rounds; round: it starts anew each round",
        choices=("rounds", "round"),
    )


class FlexMatch(FixMatch):
    name = "flexmatch"
    keeps = "the last trusted class of each unlabelled image"
    Parameters = FlexMatchParameters

    def begin(self, ctx: ClientContext) -> None:
        known = ctx.state.get("last") if self.parameters.memory == "rounds" else None
        last = torch.full((len(ctx.stream.pool),), -1) if known is None else known
        ctx.memory["last"] = last.to(ctx.device, copy=True)

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        last: Tensor = ctx.memory["last"]
        probabilities = outputs.local_weak if self.parameters.teacher == "local" else outputs.global_weak
        thresholds = class_thresholds(last, ctx.classes, self.parameters.tau, self.parameters.warmup)
        confidence, label = probabilities.max(1)
        mask = confidence >= thresholds[label]
        index = outputs.batch.u_index
        last[index] = torch.where(self.confident(probabilities), label, last[index])
        return Pseudo(label, mask, scores=probabilities)

    def finish(self, ctx: ClientContext) -> Tensors:
        ctx.state["last"] = ctx.memory["last"].cpu()
        return {}


def class_thresholds(last: Tensor, classes: int, tau: float, warmup: bool = True) -> Tensor:
    """tau_c from the memory of last trusted classes (-1: never)."""
    counts = (last[:, None] == torch.arange(classes, device=last.device)).sum(0)
    largest = counts.amax()
    if warmup:
        largest = torch.maximum(largest, (last < 0).sum())
    beta = counts / largest.clamp(min=1)
    return tau * beta / (2 - beta)


register(
    Recipe("flexmatch", "FixMatch with a threshold per class that follows the learning status", FlexMatch),
    Shown("FixMatch", 22, "sky", "dash-dot", "p"),
    aliases=["fedavg+flexmatch"],
)
