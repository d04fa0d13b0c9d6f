"""The two sides of a federation as a config says, for whoever plays them: a simulation, a server, a site."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from proxyfl.aggregation.base import Aggregator
from proxyfl.aggregation.build import build_aggregator, site_aggregator
from proxyfl.core.config import Config
from proxyfl.core.state import ServerState, Tensors
from proxyfl.data.stream import ViewSettings
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import Evaluation
from proxyfl.federation.loop import Engine, Server
from proxyfl.federation.own_training import OwnImages
from proxyfl.federation.records import RecordPrivacy
from proxyfl.federation.sampling import Population
from proxyfl.methods.base import Method
from proxyfl.methods.context import PerClientStore
from proxyfl.methods.optimisers import OptimiserFactory
from proxyfl.models import Network


def trainer_of(
    config: Config,
    method: Method,
    network: Network,
    views: ViewSettings,
    store: ClientStore,
    start: Tensors | None = None,
    optimiser: OptimiserFactory | None = None,
    *,
    aggregator: Aggregator | None = None,
) -> ClientTrainer:
    """The trainer of every client. ``start`` are weights to begin with, where they are not the seed's;
    ``aggregator`` takes the place of the one that the config names.
    """
    leaving = aggregator or site_aggregator(config.privacy)
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
        records=RecordPrivacy.of(config.privacy),
        outgoing=partial(leaving.outgoing, per_round=config.federation.per_round, seed=config.seed),
    )


def server_of(
    config: Config,
    method: Method,
    population: Population,
    engine: Engine,
    evaluate: Callable[[ServerState], Evaluation],
    classes: int,
    *,
    aggregator: Aggregator | None = None,
    store: PerClientStore | None = None,
    spool: Path | None = None,
    own: OwnImages | None = None,
) -> Server:
    """The server's side. ``aggregator`` takes the place of the one that the config names; ``own`` are the
    labelled images that the server itself holds.
    """
    return Server(
        method,
        aggregator or build_aggregator(config.aggregation, config.privacy),
        population,
        engine,
        evaluate,
        classes,
        config.federation,
        config.train,
        config.keep,
        config.seed,
        config.compute.device,
        store,
        spool,
        static=config.model.norm == "static",
        own=own,
        records=RecordPrivacy.of(config.privacy),
    )
