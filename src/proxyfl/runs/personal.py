"""A run's model at each client: accuracy on the images that the client holds out, as the model is and after
one local epoch on the client's labelled images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from proxyfl.core.config import Config, TrainSettings
from proxyfl.core.errors import DataError, RunError
from proxyfl.core.state import Task, Tensors, detached
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.client_store import ClientStore
from proxyfl.methods import registry
from proxyfl.models import part_of
from proxyfl.runs.evaluation import at_holders, evaluate_model
from proxyfl.runs.export import TrainedModel
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import Simulation, prepare


@dataclass(frozen=True)
class AtClient:
    """How good a model is at a client that holds out ``held`` images; ``personalised`` is None where it was
    not asked for, or the client has no labelled images to train on.
    """

    client: int
    held: int
    accuracy: float
    personalised: float | None = None


def at_clients(
    run: Run, which: str = "last", *, personalised: bool = False, data_root: Path | None = None
) -> list[AtClient]:
    """The model at every client that holds out images (``data.validation``), lowest accuracy first.

    With ``personalised``, also after each client has trained it for an epoch of SGD on its labelled images,
    with the run's batch size, learning rate, momentum and weight decay.
    """
    config = run.config
    if run.at_sites:
        raise DataError(
            "the images of a real federation stay at its sites; the results of their "
            f"evaluations are in 'proxyfl show {run.path} --clients'"
        )
    simulation = prepare(config, data_root or run.directory.data_root(), run.partition)
    held = simulation.partition.validation
    if held is None or simulation.validation is None:
        raise RunError(
            f"the clients of {run.path} hold out no images; start a run with --set data.validation=0.1"
        )
    trained = run.model(which, config.compute.device)
    trainer = _trainer(trained, config, simulation) if personalised else None
    start = Task(trained.card.round + 1, 0, _without_heads(trained))
    found = []
    with numerics(config.compute):
        own = at_holders(held, evaluate_model(trained, config, simulation.validation).right)
        for client in np.flatnonzero(held.sizes).tolist():
            right, count = own(client)
            tuned = None
            if trainer is not None and simulation.partition.labelled.sizes[client]:
                update = trainer.train(replace(start, client=client), simulation.holdings.client(client))
                trainer.network.load_state_dict(update.weights)
                images = simulation.dataset.train.take(torch.from_numpy(held[client]))
                tuned = evaluate_model(TrainedModel(trainer.network, trained.card), config, images).accuracy
            found.append(AtClient(client, count, right / count, tuned))
    return sorted(found, key=lambda each: (each.accuracy, each.client))


def _trainer(trained: TrainedModel, config: Config, simulation: Simulation) -> ClientTrainer:
    """Takes one local epoch on a client's labelled images."""
    train = config.train
    return ClientTrainer(
        registry.create("fedavg", {"steps": "labelled"}),
        trained.card.built(),
        simulation.train_views,
        ClientStore(Path()),
        train=TrainSettings(
            epochs=1,
            batch=train.batch,
            lr=train.lr,
            momentum=train.momentum,
            weight_decay=train.weight_decay,
        ),
        compute=config.compute,
        rounds=config.federation.rounds,
        seed=config.seed,
    )


def _without_heads(trained: TrainedModel) -> Tensors:
    weights = detached(trained.network.state_dict())
    return {name: value for name, value in weights.items() if part_of(name) != "heads"}
