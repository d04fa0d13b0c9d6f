"""Who hurts, who gains: what is noted of each client of a round.

With d_k a client's change of the weights and w_k its weight in the mean::

    norm_k    ||d_k||, before anything clips it
    cosine_k  <d_k, d> / (||d_k|| ||d||),  d = sum_k w_k d_k / sum_k w_k

over all floating tensors. Where clients hold out images, the accuracy of the global model on them is noted,
too. The mean is known when all updates have come, so the changes of a round wait for it in memory, up to a
bound; of larger rounds there are no cosines.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.flat import Layout
from proxyfl.core.state import Metrics, Tensors, Update, size_in_bytes
from proxyfl.federation.evaluate import Own

Row = dict[str, Any]
"""A client in a round, as ``clients.jsonl`` has it; ``seconds`` go to ``timing.jsonl``."""

SECONDS = "seconds"
"""The one number of a row that is another one whenever it is computed."""

MOST_WAITING = 1 << 28
"""Bytes of a round's changes that wait for the mean; of larger rounds there are no cosines."""

DIGITS = 6


class Witness:
    """Takes the updates of one round that count, in folding order; afterwards has a row for each."""

    def __init__(self, old: Tensors, per_round: int) -> None:
        self._waits = per_round * size_in_bytes(old) <= MOST_WAITING
        self._layout = Layout(old)
        self._old = self._layout.join(old) if self._waits else []
        self._changes: list[tuple[float, Tensor]] = []
        self._seen: list[tuple[Row, Metrics]] = []

    def saw(self, update: Update, round: int, weight: float, norm: float, labelled: float) -> None:
        """``round`` is the one it counts in, ``norm`` the length of its change as it came, ``labelled`` the
        share of its images.
        """
        row: Row = {"round": round, "client": update.client, "images": update.samples}
        row |= {"labelled": _short(labelled), "norm": _short(norm), SECONDS: update.seconds}
        if visits := update.metrics.get("pseudo/visits"):
            row["trusted"] = _short(update.metrics["pseudo/selected"] / visits)
        self._seen.append((row, update.metrics))
        if self._waits:
            self._changes.append((weight, self._change(update)))

    def rows(self, losses: Collection[str]) -> list[Row]:
        """A row for each client; of its losses, mean per step, those with these names."""
        found = []
        for (row, metrics), cosine in zip(self._seen, self._cosines(), strict=True):
            steps = max(1.0, metrics.get("steps", 0.0))
            own = {
                name: _short(metrics[f"loss/{name}"] / steps) for name in losses if f"loss/{name}" in metrics
            }
            found.append({**row, **({} if cosine is None else {"cosine": _short(cosine)}), "losses": own})
        return found

    def _cosines(self) -> list[float | None]:
        """Of each client's change with the mean change; None where one of them is no change at all."""
        if not self._changes:
            return [None] * len(self._seen)
        mean = torch.zeros_like(self._changes[0][1], dtype=torch.float64)
        for weight, change in self._changes:
            mean.add_(change, alpha=weight)
        return [_cosine(change.double(), mean) for _, change in self._changes]

    def _change(self, update: Update) -> Tensor:
        pairs = zip(update.joined(self._layout), self._old, strict=True)
        return torch.cat([(new - old).float() for new, old in pairs if new.is_floating_point()])


def add_accuracy(rows: list[Row], own: Own | None) -> None:
    """Give each client the accuracy of the round's global model on its own images that nobody trains on."""
    if own is None:
        return
    for row in rows:
        right, held = own(row["client"])
        if held:
            row |= {"held": held, "accuracy": _short(right / held)}


def _cosine(change: Tensor, mean: Tensor) -> float | None:
    both = math.sqrt(float(change.dot(change)) * float(mean.dot(mean)))
    return max(-1.0, min(1.0, float(change.dot(mean)) / both)) if both > 0 else None


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
