"""A run's federation, put together: method, engine, evaluation and the shelves on disk."""

from __future__ import annotations

import os
import sys
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import ServerState
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.pool import PoolEngine, default_workers, foreign_modules
from proxyfl.federation.client import ClientTrainer, autocast
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.evaluate import Evaluation, eval_batch, evaluate
from proxyfl.federation.loop import Engine, Federation
from proxyfl.methods import registry
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.simulation import Simulation
from proxyfl.runs.start import read_start

WORKERS = "PROXYFL_WORKERS"
"""The environment variable that says how many worker processes a run has where nobody says it."""


def assemble(
    run: RunDirectory, config: Config, simulation: Simulation, workers: int | None = None
) -> tuple[Federation, ClientTrainer]:
    """A federation ready to play rounds. Worker processes start with its first task."""
    method = registry.create(config.method.name, config.method.parameters, config.fidelity)
    dataset = simulation.dataset
    # A damaged checkpoint sends a run back to the oldest one kept: clients' states must reach back as far.
    versions = config.keep.checkpoint_every * config.keep.checkpoints + 1
    clients_store, server_store = ClientStore(run.clients, versions), ClientStore(run.server, versions)
    start = read_start(run, config)
    trainer = ClientTrainer(
        config, method, simulation.train_views, len(dataset.classes), dataset.channels, clients_store, start
    )
    network = trainer.placed(trainer.new_network())
    batch = eval_batch(config.compute.eval_batch, dataset.image_size, trainer.device)

    def test(state: ServerState) -> Evaluation:
        network.load_state_dict(method.model(state.weights), strict=not method.all_private)
        views = simulation.test_views
        return evaluate(
            network,
            dataset.test,
            views.mean,
            views.std,
            batch=batch,
            autocast=lambda: autocast(config.compute, trainer.device),
        )

    engine = _engine(trainer, simulation, _asked(config) if workers is None else workers)
    federation = Federation(
        config, method, simulation.population, engine, test, len(dataset.classes), server_store, run.path
    )
    return federation, trainer


def _engine(trainer: ClientTrainer, simulation: Simulation, workers: int) -> Engine:
    holdings, oracle = simulation.holdings, trainer.method.oracle
    # Where one client hands its momentum to the next, they can only be trained one after the other.
    if workers and trainer.config.train.leak_momentum:
        workers = 0
    if workers and "__main__" in foreign_modules(trainer):
        name = trainer.method.name
        print(f"note: {name} or its network is defined in the main script, so its clients train in this "
              "process; put it in a module of its own for worker processes", file=sys.stderr)  # fmt: skip
        workers = 0
    if workers:
        return PoolEngine(trainer, holdings, workers)
    return InlineEngine(trainer, lambda client: holdings.client(client, oracle=oracle), holdings.truth)


def _asked(config: Config) -> int:
    text = os.environ.get(WORKERS, "")
    if not text:
        return default_workers(config)
    if not text.isdecimal():
        raise ConfigError(f"{WORKERS} = '{text}' must be a number of processes; 0 trains in this one")
    return int(text)


def model_card(config: Config, simulation: Simulation, federation: Federation) -> dict[str, Any]:
    """What a saved model says about itself, but for the round."""
    dataset = simulation.dataset
    return {
        "network": config.model.name,
        "width": config.model.width,
        "heads": federation.method.needs_heads and not federation.method.all_private,
        "channels": dataset.channels,
        "image_size": dataset.image_size,
        "classes": dataset.classes,
        "mean": simulation.test_views.mean,
        "std": simulation.test_views.std,
        "method": config.method.name,
    }
