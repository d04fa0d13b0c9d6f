"""Krum: the updates that are near to many others (Blanchard et al., NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.aggregation.base import Gathered, Settled, like
from proxyfl.aggregation.mean import weighted_mean
from proxyfl.aggregation.robust import RobustRule, hostile_of, reckoned
from proxyfl.core.config import AggregationSettings, FederationSettings, TrainSettings
from proxyfl.core.state import Tensors
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext


@dataclass(frozen=True)
class Krum(RobustRule):
    """The mean of the updates that are nearest to the others; ``keep=1`` is Krum as it was published.

    >>> from proxyfl.aggregation import Krum
    >>> Krum(hostile=0.3, keep=1)
    Krum(hostile=0.3, keep=1)
    """

    hostile: float = like(AggregationSettings, "aggregation", "hostile")
    keep: int = like(AggregationSettings, "aggregation", "keep")
    name: ClassVar[str] = "krum"

    def refusal(self, method: Method, train: TrainSettings, federation: FederationSettings) -> str:
        if reason := super().refusal(method, train, federation):
            return reason
        if 2 * hostile_of(federation.per_round, self.hostile) + 3 > federation.per_round:
            return (
                f"krum needs 2 f + 3 updates in a round to withstand f; aggregation.hostile = "
                f"{self.hostile:g} is too much for federation.per_round = {federation.per_round}"
            )
        return ""

    def decide(self, gathered: Gathered, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        hostile = reckoned(gathered, ctx, self.hostile, spare=3)
        chosen = krum_choice(gathered.updates.squares(), hostile, self.keep)
        weights = weighted_mean((gathered.updates[place] for place in chosen), [1.0] * len(chosen))
        return Settled(weights, chosen, gathered.received(chosen, kept))


def krum_scores(squares: Tensor, hostile: int) -> Tensor:
    """Each update's sum of squared distances (M, M) to its M − f − 2 nearest others."""
    count = len(squares)
    others = squares.clone().fill_diagonal_(torch.inf).sort(1).values
    return others[:, : max(1, count - hostile - 2)].sum(1)


def krum_choice(squares: Tensor, hostile: int, keep: int) -> list[int]:
    """The ``keep`` updates with the smallest scores (0: all but the hostile), in order of arrival.

    Fewer than three updates have no neighbours to judge by and are all kept.
    """
    count = len(squares)
    if count < 3:
        return list(range(count))
    order = krum_scores(squares, hostile).argsort(stable=True)
    return sorted(order[: min(keep or count - hostile, count)].tolist())
