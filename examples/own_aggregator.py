"""Your own way to combine a round's updates, beside the built-in ones, with two clients that attack.

python examples/own_aggregator.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import proxyfl
from proxyfl.aggregation import Aggregator, Clip, Mean, TrimmedMean
from proxyfl.engines.inline import InlineEngine
from proxyfl.testing.attacks import AttackedEngine, sign_flip


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The point with the smallest sum of distances to all updates, by a few of Weiszfeld's steps."""

    steps: int = 5

    def combine(
        self, updates: Sequence[dict[str, Tensor]], weights: Sequence[float], old: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        flat = torch.stack(
            [torch.cat([update[name].double().flatten() for name in old]) for update in updates]
        )
        middle = flat.mean(0)
        for _ in range(self.steps):
            nearness = 1 / (flat - middle).norm(dim=1).clamp(min=1e-9)
            middle = (nearness[:, None] * flat).sum(0) / nearness.sum()
        parts = middle.split([value.numel() for value in old.values()])
        return {name: part.view(old[name].shape) for name, part in zip(old, parts, strict=True)}


def main(rounds: int = 5) -> None:
    data = proxyfl.load_dataset("digits")
    split = proxyfl.partition(data, clients=10, per_class=20, scheme="iid")

    def attacked(trainer, holdings):  # clients 0 and 1 send the opposite of what they learned
        return AttackedEngine(InlineEngine(trainer, holdings.client), sign_flip(), attackers={0, 1})

    for rule in (Mean(), Clip(1.0), TrimmedMean(hostile=0.2), GeometricMedian()):
        federation = proxyfl.Federation(
            data, split, method="fedavg", width=1, rounds=rounds, per_round=10, aggregator=rule,
            engine=attacked, train=proxyfl.Train(epochs=1, batch=16, lr=0.05),
        )  # fmt: skip
        print(f"{rule!r}: {list(federation.rounds())[-1].accuracy:.1%}")


if __name__ == "__main__":
    main()
