"""Looking over a method's shoulder: what it decided about unlabelled images, compared with the truth.

A method notes its decisions while it trains; they are compared afterwards, so that the truth is nowhere near
it. In a real federation there is no truth and decisions are only counted. The results are sums, which the
server adds up over clients before it forms shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from proxyfl.core.state import Metrics
from proxyfl.methods.context import Decision


class DecisionCounter:
    """Counts over the last local epoch of one client. ``truth`` has one label per image of its pool."""

    def __init__(self, pool: int, truth: Tensor | None, device: torch.device) -> None:
        self.truth = truth.to(device) if truth is not None else None
        self.excluded = torch.zeros(pool, dtype=torch.bool, device=device)
        self.sums: dict[str, Tensor] = {}

    def labels(self, index: Tensor, label: Tensor, mask: Tensor) -> None:
        self._add("visits", torch.as_tensor(len(index)))
        self._add("selected", mask.sum())
        self.excluded[index] |= ~mask  # an image is visited once in a batch
        if self.truth is not None:
            right = label == self.truth[index]
            self._add("right", right.sum())
            self._add("selected_right", (right & mask).sum())

    def sets(self, index: Tensor, sets: Tensor, low: Tensor) -> None:
        self._add("low", low.sum())
        self._add("set_size", (sets.sum(1) * low).sum())
        if self.truth is not None:
            inside = sets.gather(1, self.truth[index][:, None])[:, 0]
            self._add("set_right", (inside & low).sum())

    def metrics(self) -> Metrics:
        found = {f"pseudo/{name}": float(value) for name, value in self.sums.items()}
        if found:
            found["pseudo/excluded_images"] = float(self.excluded.sum())
        return found

    def _add(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums[name] + value if name in self.sums else value


def count_decisions(
    decisions: Iterable[Decision], pool: Tensor, truth: Callable[[Tensor], Tensor] | None
) -> Metrics:
    """Sums over a client's decisions. ``truth`` maps the images of the pool to their true labels."""
    decisions = list(decisions)
    if not decisions:
        return {}
    counter = DecisionCounter(len(pool), truth(pool) if truth else None, decisions[0].index.device)
    for made in decisions:
        if made.label is not None:
            counter.labels(made.index, made.label, made.mask)
        if made.sets is not None:
            counter.sets(made.index, made.sets, ~made.mask)
    return counter.metrics()


def shares(sums: Metrics) -> dict[str, float]:
    """What the summed counts say: shares and accuracies of pseudo-labels and category sets."""
    count = {
        name.removeprefix("pseudo/"): value for name, value in sums.items() if name.startswith("pseudo/")
    }
    visits = count.get("visits", 0.0)
    if not visits:
        return {}
    selected, excluded = count["selected"], visits - count["selected"]
    found = {
        "visits": visits,
        "selected": selected,
        "selected_share": selected / visits,
        "excluded_visits": excluded,
        "excluded_images": count["excluded_images"],
    }
    if "right" in count:
        found["accuracy"] = count["right"] / visits
        if selected:
            found["selected_accuracy"] = count["selected_right"] / selected
        if excluded:
            found["low_accuracy"] = (count["right"] - count["selected_right"]) / excluded
    if count.get("low"):
        found["set_size"] = count["set_size"] / count["low"]
        if "set_right" in count:
            found["set_recall"] = count["set_right"] / count["low"]
    return found
