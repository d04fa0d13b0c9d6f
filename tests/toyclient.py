"""One client with a network small enough to compute by hand, for tests of what methods do in a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl.core.config import TrainSettings
from proxyfl.core.state import Task, Tensors
from proxyfl.data.stream import Batch, ClientData
from proxyfl.methods.base import Method
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.models import attach_heads

CPU = torch.device("cpu")
CLASSES, FEATURES, LABELLED, UNLABELLED = 4, 5, 3, 6
PRIOR = torch.tensor([0.4, 0.3, 0.2, 0.1])


class Toy(nn.Module):
    """Nine pixels through a fixed map and a bent line to five features, and a classifier."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.mix = nn.Parameter(torch.randn(9, FEATURES, generator=generator))
        self.classifier = nn.Linear(FEATURES, CLASSES)
        self.classifier.weight.data = torch.randn(CLASSES, FEATURES, generator=generator)
        self.classifier.bias.data = torch.randn(CLASSES, generator=generator) / 4

    def features(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.mix).tanh()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def network(seed: int, heads: bool = False) -> nn.Module:
    if not heads:
        return Toy(seed)
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        return attach_heads(Toy(seed), "toy")


def batch(labelled: int = LABELLED, unlabelled: int = UNLABELLED, *, seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x, weak, strong, x_strong = (
        torch.randn(n, 1, 3, 3, generator=generator) for n in (labelled, unlabelled, unlabelled, labelled)
    )
    return Batch(x, torch.arange(labelled) % CLASSES, x_strong, weak, strong, torch.arange(unlabelled))


@dataclass
class Pool:
    """Stands for a stream: weak views of the whole pool, and which of them a method asked for. The client has
    these labels.
    """

    weak: Tensor
    selected: list[int] | None = field(default=None)
    steps: int = 1
    labels: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))

    @property
    def data(self) -> ClientData:
        pool = torch.arange(len(self.weak))
        return ClientData(self.weak, pool[: len(self.labels)], self.labels, pool)

    @property
    def pool(self) -> Tensor:
        return torch.arange(len(self.weak))

    def walk_pool(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for positions in torch.split(self.pool, 7):  # whatever the batch: its size must not matter
            yield positions, self.weak[positions]

    def weak_views(self, positions: Tensor) -> Tensor:
        return self.weak[positions]

    def restrict(self, positions: Tensor) -> None:
        self.selected = positions.tolist()


def context(
    method: Method,
    *,
    epochs: int = 1,
    round: int = 1,
    extras: Tensors | None = None,
    state: Tensors | None = None,
    pool: Pool | None = None,
    initial: Tensors | None = None,
    **train: Any,
) -> ClientContext:
    """A client that received network 1 and has trained on to network 2."""
    received = network(1, method.needs_heads).state_dict()
    return ClientContext(
        method=method,
        model=network(2, method.needs_heads),
        stream=pool,  # type: ignore[arg-type]
        task=Task(round, 0, received, {"prior/classes": PRIOR} if extras is None else extras),
        settings=TrainSettings(epochs=epochs, **train),
        classes=CLASSES,
        rounds=round,
        seed=1,
        device=CPU,
        autocast=nullcontext,
        initial=lambda: initial or {},
        state=state or {},
    )


def step(ctx: ClientContext, given: Batch | None = None) -> Outputs:
    """A forward pass and what the method makes of it, without the descent."""
    outputs = ctx.forward(given or batch())
    ctx.method.decide(outputs, ctx)
    return outputs


def softmax(rows: Any) -> np.ndarray:
    powers = np.exp(rows - rows.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def arrays(weights: Tensors) -> list[np.ndarray]:
    """Map, classifier rows and bias in float64."""
    return [
        weights[name].detach().double().numpy() for name in ("mix", "classifier.weight", "classifier.bias")
    ]


def slow_features(mix: np.ndarray, images: Tensor) -> np.ndarray:
    return np.tanh(images.double().flatten(1).numpy() @ mix)


def logits_of(weights: Sequence[np.ndarray], images: Tensor) -> np.ndarray:
    mix, rows, bias = weights
    return slow_features(mix, images) @ rows.T + bias


def slow_logits(seed: int, images: Tensor) -> np.ndarray:
    return logits_of(arrays(Toy(seed).state_dict()), images)


def predictions(seed: int, images: Tensor) -> list[list[float]]:
    """Rows of probabilities of network ``seed``, for loops."""
    found: list[list[float]] = softmax(slow_logits(seed, images)).tolist()
    return found
