"""Which clients take part in a round: a pure function of the settings and the round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from proxyfl.core.config import Config
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


def sample_clients(config: Config, round: int, population: Population) -> list[int]:
    """``per_round`` clients without replacement among those that hold images, in the order of their work.

    The order is part of the result: answers are folded in it. Largest clients come first, so that no worker
    idles at the end of a round; the legacy stream keeps its own order, in which momentum leaks.
    """
    holders = population.holders
    count = min(config.federation.per_round, len(holders))
    if config.federation.sampling == "legacy":
        stream = np.random.RandomState(LEGACY_SEED)
        for _ in range(round - 1):
            stream.choice(holders, count, replace=False)
        return [int(client) for client in stream.choice(holders, count, replace=False)]
    chosen = numpy_rng(config.seed, round, SERVER, "sample").choice(holders, count, replace=False)
    return sorted((int(client) for client in chosen), key=lambda client: (-population.sizes[client], client))
