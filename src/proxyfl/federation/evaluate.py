"""What a network gets right on a test split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.errors import DataError
from proxyfl.core.state import Tensors
from proxyfl.data.dataset import Split
from proxyfl.data.vectors import prepared
from proxyfl.federation import measures
from proxyfl.federation.score_counts import score_counts

Own = Callable[[int], tuple[int, int]]
"""Of a client's own images that nobody trains on: how many are recognised, and how many there are."""


@dataclass(frozen=True)
class Evaluation:
    """Counts of (true class, predicted class), ``scores`` that need probabilities, and what follows.

    ``right`` tells which images of the split were recognised, ``own`` what that comes to at single clients,
    where it is known; ``counts`` are for who must not send scores.
    """

    confusion: Tensor
    scores: dict[str, float] = field(default_factory=dict)
    right: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))
    own: Own | None = None
    counts: Tensors = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return int(self.confusion.diagonal().sum()) / max(1, int(self.confusion.sum()))

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy per true class; None for a class without test images."""
        totals = self.confusion.sum(1)
        right = self.confusion.diagonal()
        return [int(r) / int(n) if n else None for r, n in zip(right, totals, strict=True)]

    @property
    def precision(self) -> list[float | None]:
        """Share of right ones by predicted class; None for a class that was never predicted."""
        return measures.precision(self.confusion)

    @property
    def measures(self) -> dict[str, float]:
        """Beside accuracy, by the keys of :data:`~proxyfl.core.records.MEASURES`."""
        return measures.of_confusion(self.confusion) | self.scores


def evaluate(
    network: nn.Module,
    split: Split,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    *,
    batch: int,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    scores: bool = False,
    counts: bool = False,
    heed: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Top-1 predictions of the network in eval mode over the whole split; with ``scores`` its probabilities
    are measured as well, with ``counts`` they are counted. ``heed`` is called before each batch.
    """
    if not len(split):
        raise DataError("there are no test images to evaluate on")
    device = next(network.parameters()).device
    network.eval()
    confusion, kept, right = torch.zeros(0, dtype=torch.int64), list[Tensor](), list[Tensor]()
    with torch.inference_mode():
        batches = zip(torch.split(split.images, batch), torch.split(split.labels, batch), strict=True)
        for images, labels in batches:
            heed()
            with autocast():
                logits = network(prepared(images.to(device), mean, std))
            if not len(confusion):
                confusion = torch.zeros(logits.shape[1] ** 2, dtype=torch.int64)
            guesses = logits.argmax(1).cpu()
            right.append(guesses == labels)
            cells = labels * logits.shape[1] + guesses
            confusion += torch.bincount(cells, minlength=len(confusion))
            if scores or counts:
                kept.append(logits.float().softmax(1).cpu())
    classes = int(len(confusion) ** 0.5 + 0.5)
    found = measures.of_scores(torch.cat(kept), split.labels) if scores else {}
    counted = score_counts(torch.cat(kept), split.labels) if counts else {}
    return Evaluation(confusion.reshape(classes, classes), found, torch.cat(right), counts=counted)


def eval_batch(setting: int, image_size: int, device: torch.device) -> int:
    """Test images in a batch: what is set, else 131,072 pixels on a CPU, whose caches then hold the
    activations, and 8 million elsewhere, and 4,096 vectors (``image_size`` 0).
    """
    if setting:
        return setting
    pixels = 1 << (17 if device.type == "cpu" else 23)
    return max(16, min(4096, pixels // max(1, image_size * image_size)))
