"""A trained model on images, measured as the rounds measure it: same batches, same arithmetic."""

from __future__ import annotations

import torch

from proxyfl.core.config import Config
from proxyfl.data.dataset import Split
from proxyfl.federation.client import autocast, numerics
from proxyfl.federation.evaluate import Evaluation, eval_batch, evaluate
from proxyfl.runs.export import TrainedModel


def evaluate_model(
    trained: TrainedModel, config: Config, images: Split, *, scores: bool = False
) -> Evaluation:
    """``scores`` keeps what the measures beside accuracy need."""
    device = torch.device(config.compute.device)
    trained.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with numerics(config.compute):
        return evaluate(
            trained.network,
            images,
            trained.card.mean,
            trained.card.std,
            batch=eval_batch(config.compute.eval_batch, trained.card.image_size, device),
            autocast=lambda: autocast(config.compute, device),
            scores=scores,
        )
