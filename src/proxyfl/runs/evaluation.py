"""Models on images that nobody trains on: the global model of a round, or a trained one as the rounds measure
it, with the same batches and the same arithmetic.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl.core.config import ComputeSettings, Config
from proxyfl.core.state import ServerState
from proxyfl.data.dataset import Split
from proxyfl.data.ragged import Ragged
from proxyfl.federation.client import ClientTrainer, autocast, numerics
from proxyfl.federation.evaluate import Evaluation, Own, eval_batch, evaluate
from proxyfl.runs.export import TrainedModel
from proxyfl.runs.simulation import Simulation


def evaluate_model(
    trained: TrainedModel, config: Config, images: Split, *, scores: bool = False
) -> Evaluation:
    """``scores`` keeps what the measures beside accuracy need."""
    card = trained.card
    trained.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with numerics(config.compute):
        return _measured(
            trained.network, images, card.mean, card.std, card.image_size, config.compute, scores=scores
        )


class GlobalModel:
    """The model of a round on a split. ``holders`` are the lists of images of the clients that hold them
    out; the split has each image once, in order.
    """

    def __init__(
        self,
        trainer: ClientTrainer,
        simulation: Simulation,
        split: Split,
        *,
        scores: bool,
        holders: Ragged | None = None,
    ) -> None:
        self.trainer, self.simulation, self.split, self.scores = trainer, simulation, split, scores
        self.holders = holders

    @cached_property
    def network(self) -> nn.Module:
        return self.trainer.placed(self.trainer.new_network())

    def __call__(self, state: ServerState) -> Evaluation:
        trainer, views, size = self.trainer, self.simulation.test_views, self.simulation.dataset.image_size
        weights, strict = trainer.method.model(state.weights), not trainer.method.all_private
        self.network.load_state_dict(weights, strict=strict)
        found = _measured(
            self.network, self.split, views.mean, views.std, size, trainer.compute, scores=self.scores
        )
        own = None if self.holders is None else at_holders(self.holders, found.right)
        return dataclasses.replace(found, own=own)


def _measured(
    network: nn.Module,
    images: Split,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    image_size: int,
    compute: ComputeSettings,
    *,
    scores: bool,
) -> Evaluation:
    device = torch.device(compute.device)
    return evaluate(
        network,
        images,
        mean,
        std,
        batch=eval_batch(compute.eval_batch, image_size, device),
        autocast=lambda: autocast(compute, device),
        scores=scores,
    )


def at_holders(holders: Ragged, right: Tensor) -> Own:
    """What ``right``, of all images that clients hold out, each once and in order, comes to at a client."""
    images = np.unique(holders.flat()[1])

    def own(client: int) -> tuple[int, int]:
        places = torch.from_numpy(np.searchsorted(images, holders[client]))
        return int(right[places].sum()), len(places)

    return own
