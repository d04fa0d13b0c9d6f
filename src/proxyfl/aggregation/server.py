"""Server optimisers: the mean change of a round as a gradient (Reddi et al., ICLR 2021).

With the weights g that were sent out and their mean (or what another rule makes of the updates) x::

    d = x - g
    FedAvgM   v <- b v + d                                        g <- g + lr v
    FedAdam   m <- b1 m + (1 - b1) d    v <- b2 v + (1 - b2) d^2  g <- g + lr m / (sqrt v + tau)
    FedYogi   m as above                v <- v - (1 - b2) d^2 sign(v - d^2)

m and FedAvgM's v begin at zero, the other v at tau^2; there is no correction of bias. Statistics of batch
norm and whole-numbered tensors are no parameters and take the mean. m and v are kept in the server's extras,
under names that are never sent, so that a resumed run goes on with the same numbers.

Deviations: none from the paper's algorithms 1 and 2; its FedAvgM is the one of Hsu et al. (2019).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.aggregation.base import Accumulator, Aggregator, Around, Passing, Round, Settled, like
from proxyfl.aggregation.mean import Mean
from proxyfl.core.config import AggregationSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Tensors
from proxyfl.methods.context import ServerContext

SLOT = "server/_{slot}/{name}"
"""The names of what an optimiser remembers of a parameter; the underscore keeps it on the server."""

STATISTICS = ("running_mean", "running_var")


class ServerOptimiser(Around):
    """Goes a step of its own from the old weights, in the direction of those that ``inner`` gives."""

    lr: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lr:
            raise ConfigError("aggregation.lr = 0 would leave the weights as they are; give a step above 0")
        if isinstance(self.inner, ServerOptimiser):
            inner, outer = type(self.inner).__name__, type(self).__name__
            raise ConfigError(f"one server optimiser is enough: {inner} cannot be inside {outer}")

    @property
    @abstractmethod
    def first(self) -> dict[str, float]:
        """What it remembers of each parameter, and where that begins."""

    @abstractmethod
    def step(self, change: Tensor, slots: Tensors) -> Tensor:
        """How far a parameter moves; replaces its ``slots``. All are float64."""

    def begin(self, round: Round) -> Accumulator:
        return Stepping(self, self.inner.begin(round), round.state.weights)


class Stepping(Passing):
    """Lets another accumulator settle, then goes the optimiser's step."""

    def __init__(self, optimiser: ServerOptimiser, inner: Accumulator, old: Tensors) -> None:
        super().__init__(inner, old)
        self.optimiser = optimiser

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        settled = super().settle(ctx, kept)
        for name, new in settled.weights.items():
            if is_parameter(name, new):
                settled.weights[name] = self._moved(name, new, ctx)
        return settled

    def _moved(self, name: str, new: Tensor, ctx: ServerContext) -> Tensor:
        old, slots = self.old[name].double(), {}
        for slot, start in self.optimiser.first.items():
            known = ctx.extras.get(SLOT.format(slot=slot, name=name))
            slots[slot] = torch.full_like(old, start) if known is None else known.double()
        moved = old + self.optimiser.step(new.double() - old, slots)
        for slot, value in slots.items():
            ctx.extras[SLOT.format(slot=slot, name=name)] = value.to(new.dtype)
        return moved.to(new.dtype)


def is_parameter(name: str, value: Tensor) -> bool:
    """Whether a tensor of the weights is trained, rather than counted or averaged."""
    return value.is_floating_point() and not name.endswith(STATISTICS)


@dataclass(frozen=True)
class FedAvgM(ServerOptimiser):
    """Momentum on the server.

    >>> from proxyfl.aggregation import FedAvgM
    >>> FedAvgM(momentum=0.5)
    FedAvgM(lr=1.0, momentum=0.5, inner=Mean())
    """

    lr: float = like(AggregationSettings, "aggregation", "lr", default=1.0)
    momentum: float = like(AggregationSettings, "aggregation", "momentum")
    inner: Aggregator = field(default_factory=Mean)
    name: ClassVar[str] = "fedavgm"

    @property
    def first(self) -> dict[str, float]:
        return {"v": 0.0}

    def step(self, change: Tensor, slots: Tensors) -> Tensor:
        slots["v"] = self.momentum * slots["v"] + change
        return self.lr * slots["v"]


@dataclass(frozen=True)
class FedAdam(ServerOptimiser):
    """Adam on the server.

    >>> from proxyfl.aggregation import FedAdam, Median
    >>> FedAdam(lr=0.05, inner=Median())
    FedAdam(lr=0.05, beta1=0.9, beta2=0.99, tau=0.001, inner=Median())
    """

    lr: float = like(AggregationSettings, "aggregation", "lr", default=0.01)
    beta1: float = like(AggregationSettings, "aggregation", "beta1")
    beta2: float = like(AggregationSettings, "aggregation", "beta2")
    tau: float = like(AggregationSettings, "aggregation", "tau")
    inner: Aggregator = field(default_factory=Mean)
    name: ClassVar[str] = "fedadam"

    @property
    def first(self) -> dict[str, float]:
        return {"m": 0.0, "v": self.tau**2}

    def step(self, change: Tensor, slots: Tensors) -> Tensor:
        slots["m"] = self.beta1 * slots["m"] + (1 - self.beta1) * change
        slots["v"] = self.second(slots["v"], change.square())
        return self.lr * slots["m"] / (slots["v"].sqrt() + self.tau)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next mean of squared changes."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """Adam on the server, whose mean of squares falls more slowly.

    >>> from proxyfl.aggregation import FedYogi
    >>> FedYogi(tau=0.01)
    FedYogi(lr=0.01, beta1=0.9, beta2=0.99, tau=0.01, inner=Mean())
    """

    name: ClassVar[str] = "fedyogi"

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)
