"""Who hurts, who gains: what is noted of each client of a round.

With d_k a client's change of the weights and w_k its weight in the mean::

    norm_k    ||d_k||, before anything clips it
    cosine_k  <d_k, d> / (||d_k|| ||d||),  d = sum_k w_k d_k / sum_k w_k

over all floating tensors. Where clients keep images back, the accuracy of the global model on them is noted,
too. The mean is known when all updates have come, so they wait on disk for it: memory
does not grow with participants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxyfl.aggregation.updates import Updates
from proxyfl.core.config import KeepSettings
from proxyfl.core.state import Metrics, Tensors, Update, size_in_bytes
from proxyfl.federation.evaluate import Own

Row = dict[str, Any]
"""A client in a round, as ``clients.jsonl`` has it; ``seconds`` go to ``timing.jsonl``."""

SECONDS = "seconds"
"""The one number of a row that is another one whenever it is computed."""

MOST_ON_DISK = 1 << 30
"""Bytes of a round's updates that wait for the mean unless ``keep.clients = "all"``; of larger rounds there
are no cosines."""

DIGITS = 6


class Witness:
    """Takes the updates of one round that count, in folding order; afterwards has a row for each."""

    def __init__(self, old: Tensors, keep: KeepSettings, per_round: int, spool: Path | None = None) -> None:
        self.old = {name: value for name, value in old.items() if value.is_floating_point()}
        small = per_round * size_in_bytes(self.old) <= MOST_ON_DISK
        self.waiting = Updates(self.old, spool) if small or keep.clients == "all" else None
        self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self.old.items()}
        self._total = 0.0
        self._seen: list[tuple[Row, Metrics]] = []

    def saw(self, update: Update, weight: float, norm: float, labelled: float) -> None:
        """``norm`` is the length of its change as it came, ``labelled`` the share of its images."""
        row: Row = {"round": update.round, "client": update.client, "images": update.samples}
        row |= {"labelled": _short(labelled), "norm": _short(norm), SECONDS: update.seconds}
        if visits := update.metrics.get("pseudo/visits"):
            row["trusted"] = _short(update.metrics["pseudo/selected"] / visits)
        self._seen.append((row, update.metrics))
        if self.waiting is not None:
            self.waiting.add({name: update.weights[name] for name in self.old})
            self._total += weight
            for name, change in self._change(update.weights):
                self._sums[name] += weight * change

    def rows(self, losses: Collection[str]) -> list[Row]:
        """A row for each client; of its losses, mean per step, those with these names."""
        try:
            cosines = self._cosines()
        finally:
            self.close()
        found = []
        for (row, metrics), cosine in zip(self._seen, cosines, strict=True):
            steps = max(1.0, metrics.get("steps", 0.0))
            own = {
                name: _short(metrics[f"loss/{name}"] / steps) for name in losses if f"loss/{name}" in metrics
            }
            found.append({**row, **({} if cosine is None else {"cosine": _short(cosine)}), "losses": own})
        return found

    def close(self) -> None:
        """Let go of what waits on disk."""
        if self.waiting is not None:
            self.waiting.close()

    def _cosines(self) -> list[float | None]:
        """Of each client's change with the mean change; None where one of them is no change at all."""
        if self.waiting is None or not self._total > 0:
            return [None] * len(self._seen)
        mean = {name: value / self._total for name, value in self._sums.items()}
        length = _length(mean)
        return [self._cosine(weights, mean, length) for weights in self.waiting]

    def _cosine(self, weights: Tensors, mean: Tensors, length: float) -> float | None:
        change = dict(self._change(weights))
        both = _length(change) * length
        dot = math.fsum(float((value * mean[name]).sum()) for name, value in change.items())
        return max(-1.0, min(1.0, dot / both)) if both > 0 else None

    def _change(self, weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        return [(name, weights[name].double() - old.double()) for name, old in self.old.items()]


def add_accuracy(rows: list[Row], own: Own | None) -> None:
    """Give each client the accuracy of the round's global model on its own images that nobody trains on."""
    if own is None:
        return
    for row in rows:
        right, held = own(row["client"])
        if held:
            row |= {"held": held, "accuracy": _short(right / held)}


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(float(value.square().sum()) for value in tensors.values()))


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
