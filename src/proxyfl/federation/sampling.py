"""Which clients take part in a round: a pure function of the settings and the round, and where its own
clients cannot make the quorum, of the attempt and of who is online.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from proxyfl.core.config import FederationSettings
from proxyfl.core.rng import SERVER, numpy_rng

LEGACY_SEED = 7
"""The released program's seed for client sampling."""


@dataclass(frozen=True)
class Population:
    """How many labelled and unlabelled images each registered client holds."""

    labelled: npt.NDArray[np.int64]
    unlabelled: npt.NDArray[np.int64]

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self.labelled + self.unlabelled

    @cached_property
    def holders(self) -> npt.NDArray[np.int64]:
        """The clients that hold any image."""
        return np.flatnonzero(self.sizes)

    @cached_property
    def legacy_draws(self) -> LegacyDraws:
        return LegacyDraws(self.holders)


class LegacyDraws:
    """The released program's one stream of samples, whose every draw shuffles all clients.

    The stream stays where the last round left it, so that a round does not repeat all draws before it.
    """

    def __init__(self, holders: npt.NDArray[np.int64]) -> None:
        self.holders = holders
        self._restart(0)

    def sample(self, round: int, count: int) -> list[int]:
        """The ``count`` clients of a round; another count or an earlier round begins the stream again."""
        if count != self.count or round <= self.round:
            self._restart(count)
        while self.round < round:
            drawn = self.stream.choice(self.holders, count, replace=False)
            self.round += 1
        return [int(client) for client in drawn]

    def _restart(self, count: int) -> None:
        self.stream, self.round, self.count = np.random.RandomState(LEGACY_SEED), 0, count


@dataclass(frozen=True)
class Redraw:
    """Another draw for a round, its second or a later one, among clients that are online (``online``)."""

    attempt: int
    online: tuple[int, ...]

    def record(self) -> dict[str, int | list[int]]:
        """What a round's metrics and a run's events say of it: all that is needed to repeat it."""
        return {"attempt": self.attempt, "online": list(self.online)}


def sample_clients(
    settings: FederationSettings,
    seed: int,
    round: int,
    population: Population,
    redraw: Redraw | None = None,
) -> list[int]:
    """``per_round`` clients without replacement among those that hold images, in the order of their work.

    With poisson sampling each takes part by a coin of its own, so that only their mean number is that.
    Whatever the sampling, a ``redraw`` takes ``per_round`` of its clients, or all of them.
    The order is part of the result: answers are folded in it. Largest clients come first, so that no worker
    idles at the end of a round; the legacy stream keeps its own order, in which momentum leaks.
    """
    holders, sampling, purpose = population.holders, settings.sampling, "sample"
    if redraw is not None:
        holders, sampling = holders[np.isin(holders, redraw.online)], "stream"
        purpose = f"sample {redraw.attempt}"
    count = min(settings.per_round, len(holders))
    if sampling == "legacy":
        return population.legacy_draws.sample(round, count)
    stream = numpy_rng(seed, round, SERVER, purpose)
    if sampling == "poisson":
        chosen = holders[stream.random(len(holders)) < count / max(1, len(holders))]
    else:
        chosen = stream.choice(holders, count, replace=False)
    return sorted((int(client) for client in chosen), key=lambda client: (-population.sizes[client], client))
