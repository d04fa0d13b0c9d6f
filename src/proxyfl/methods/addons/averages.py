"""Averages of a client's predictions, by which add-ons weigh its unlabelled images.

A client takes few steps in a round, in which an average of 0.999 hardly moves. Hence ``statistics = "pool"``:
the averages are computed at the start of each round, from the global model's predictions on the client's
whole pool, and stay for the round. ``"client"`` follows the steps, as papers of centralised learning do, and
keeps the averages at the client between its rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, namespace, within
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ClientContext


@dataclass(frozen=True)
class AverageParameters:
    """How averages are taken."""

    ema: float = setting(0.999, "share of the averages kept each step", low=0, high=1)
    statistics: str = setting(
        "pool",
        "pool: averages over the whole pool, computed anew each round; client: over "
        "the client's steps, kept between rounds",
        choices=("pool", "client"),
    )


class Averages(Addon):
    """An add-on whose averages are in ``ctx.memory`` below its name. Where ``keeps`` is not empty, it has to
    move them with each step.
    """

    averaged: ClassVar[str] = ""
    """What is averaged, in words."""

    def __init__(self, parameters: Any = None, **values: Any) -> None:
        super().__init__(parameters, **values)
        self.keeps = self.averaged if self.parameters.statistics == "client" else ""

    def first(self, classes: int) -> Tensors:
        """The averages before any prediction."""
        raise NotImplementedError

    def measured(self, rows: Tensor) -> Tensors:
        """The averages of these predictions."""
        raise NotImplementedError

    def begin(self, ctx: ClientContext) -> None:
        held = self.first(ctx.classes) | (namespace(ctx.state, self.name) if self.keeps else {})
        held = {name: value.to(ctx.device) for name, value in held.items()}
        if not self.keeps and len(rows := ctx.pool_predictions):
            held = self.measured(rows)
        ctx.memory[self.name] = held

    def finish(self, ctx: ClientContext) -> Tensors:
        if self.keeps:
            ctx.state |= within(self.name, {key: value.cpu() for key, value in ctx.memory[self.name].items()})
        return {}
