"""What clients without labels do to ProxyFL, taken apart: variants of it for ``benchmarks/learning.py``.

With labels at some clients, the others may hold the mean back in two ways: they return the weights almost as
they were (dilution), or they learn wrong pseudo-labels. Each variant takes one of these away.
"""

from __future__ import annotations

from typing import ClassVar

from proxyfl.core.state import Update
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.proxyfl import ProxyFL
from proxyfl.methods.registry import Recipe, register


class Idle(ProxyFL):
    """Clients without labels return the weights as they came, and count in the mean: dilution alone."""

    name = "proxyfl-idle"

    def begin(self, ctx: ClientContext) -> None:
        super().begin(ctx)
        if not len(ctx.stream.data.labels):
            ctx.stream.steps = 0


class LeftOut(Idle):
    """The same clients do not count: neither dilution nor pseudo-labels."""

    name = "proxyfl-left-out"

    def weight_of(self, update: Update, rule: float) -> float:
        return rule if update.metrics["steps"] else 0.0


class Correct(ProxyFL):
    """Only correct ones of the confident pseudo-labels are learned, by an oracle: no wrong labels."""

    name = "proxyfl-correct"
    oracle: ClassVar[bool] = True

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        found = super().pseudo_label(outputs, ctx)
        right = found.label == ctx.truth[outputs.batch.u_index]
        return Pseudo(found.label, found.mask & right, scores=found.scores)


for method in (Idle, LeftOut, Correct):
    register(Recipe(method.name, (method.__doc__ or "").partition(":")[0], method, ("icpl", "gpt")))
