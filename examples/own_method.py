"""Your own method as an object: what differs from its parent, and nothing else.

python examples/own_method.py
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import proxyfl
from proxyfl.methods.addons import GPT
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.methods.fixmatch import FixMatch, FixMatchParameters


@dataclass(frozen=True)
class SharpParameters(FixMatchParameters):
    """Parameters of the method below; ranges are checked wherever they are set."""

    sharpness: float = proxyfl.setting(0.1, "weight of the entropy of predictions on strong views", low=0)


class Sharp(FixMatch):
    """FixMatch that also prefers decided predictions: loss = Ls + Lu + sharpness * H(p(strong))."""

    name = "sharp"
    Parameters = SharpParameters

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        found = super().losses(outputs, ctx)
        if len(outputs.strong):
            log = outputs.strong.log_softmax(1)
            found["entropy"] = -self.parameters.sharpness * (log.exp() * log).sum(1).mean()
        return found


def main(rounds: int = 5, workers: int | None = None) -> None:
    data = proxyfl.load_dataset("digits")
    split = proxyfl.partition(data, clients=10, per_class=10)
    for method in (FixMatch(teacher="global"), Sharp(teacher="global"), Sharp(sharpness=0.3, addons=[GPT()])):
        federation = proxyfl.Federation(
            data, split, method=method, width=1, rounds=rounds, per_round=4, workers=workers,
            train=proxyfl.Train(epochs=1, batch=16, lr=0.05),
        )  # fmt: skip
        last = list(federation.rounds())[-1]
        losses = ", ".join(f"{name} {value:.2f}" for name, value in last.losses.items())
        print(f"{method!r}: {last.accuracy:.1%} ({losses})")


if __name__ == "__main__":
    main()
