"""A client trainer as a config says, for whoever trains: a simulation, its workers, a site."""

from __future__ import annotations

from functools import partial

from proxyfl.aggregation.build import site_aggregator
from proxyfl.core.config import Config
from proxyfl.core.state import Tensors
from proxyfl.data.stream import ViewSettings
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.client_store import ClientStore
from proxyfl.methods.base import Method
from proxyfl.methods.context import OptimiserFactory
from proxyfl.models import Network


def trainer_of(
    config: Config,
    method: Method,
    network: Network,
    views: ViewSettings,
    store: ClientStore,
    start: Tensors | None = None,
    optimiser: OptimiserFactory | None = None,
) -> ClientTrainer:
    """The trainer of every client. ``start`` are weights to begin with, where they are not the seed's."""
    leave = site_aggregator(config.privacy).outgoing
    return ClientTrainer(
        method,
        network,
        views,
        store,
        train=config.train,
        compute=config.compute,
        rounds=config.federation.rounds,
        seed=config.seed,
        start=start,
        optimiser=optimiser,
        outgoing=partial(leave, per_round=config.federation.per_round, seed=config.seed),
    )
