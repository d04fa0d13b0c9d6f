"""What the rules that resist hostile clients have in common.

Of M updates x_1 … x_M, with f of them reckoned to be hostile::

    median    of each coordinate; the mean of the two in the middle where M is even
    trimmed   of each coordinate, the mean of what is left without its f smallest and f largest values
    krum      score_i = sum of the M - f - 2 smallest ||x_i - x_j||^2, j other than i; the mean of the updates
              with the smallest scores

They need every update, so updates wait on disk and are read in blocks: memory does not grow with the number
of participants. Numbers are float64 on the way; whole-numbered tensors (step counters) come back rounded.
Statistics of batch norm are treated as any other number, lengths and distances included: who could hide in
them would.
"""

from __future__ import annotations

import math

from proxyfl.aggregation.base import Aggregator, Gathered
from proxyfl.aggregation.coverage import own_weights
from proxyfl.core.config import FederationSettings, TrainSettings
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext


class RobustRule(Aggregator):
    """Gives all updates the same say, since a hostile client may claim any size that it registered."""

    def refusal(self, method: Method, train: TrainSettings, federation: FederationSettings) -> str:
        setting = f"aggregation.rule = '{self.title}'"
        if own := own_weights(method):
            return f"{setting} weights all updates equally, but {own}; use the mean"
        if train.leak_momentum:
            return (
                f"{setting} cannot inspect the momentum that clients pass on; set train.leak_momentum = false"
            )
        return ""


def hostile_of(count: int, share: float) -> int:
    """How many of ``count`` updates are hostile if ``share`` of them are, rounded up."""
    return math.ceil(share * count - 1e-9)


def withstood(count: int, share: float, spare: int) -> int:
    """The same, but no more than a rule can withstand that needs ``2 f + spare`` updates."""
    return max(0, min(hostile_of(count, share), (count - spare) // 2))


def reckoned(gathered: Gathered, ctx: ServerContext, share: float, spare: int) -> int:
    """How many hostile updates the round withstands; its metrics tell where it is fewer than planned."""
    found = withstood(len(gathered.updates), share, spare)
    if found < hostile_of(gathered.round.per_round, share):
        ctx.metrics["withstood"] = found
    return found
