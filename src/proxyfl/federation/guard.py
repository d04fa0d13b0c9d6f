"""The guard: one bad update never ends a run, and never reaches the mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.state import Tensors, Update


@dataclass
class Guard:
    """Checks the updates of one round against what was sent out.

    ``sizes`` tells how many images each client registered with; ``max_norm`` bounds the change of weights
    (0: no bound), ``extras`` are the shapes of what else is sent.
    """

    round: int
    weights: Tensors
    sizes: Mapping[int, int]
    max_norm: float = 0.0
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def check(self, update: Update) -> None:
        """Let the update pass, or raise :class:`UpdateRefused` with the reason."""
        if update.round != self.round:
            raise UpdateRefused(f"belongs to round {update.round}, not {self.round}")
        if update.client not in self.sizes:
            raise UpdateRefused("was not asked in this round")
        if update.client in self.seen:
            raise UpdateRefused("answered twice")
        if not 0 < update.samples <= self.sizes[update.client]:
            raise UpdateRefused(f"claims {update.samples} images, registered {self.sizes[update.client]}")
        _same_form(update.weights, self.weights)
        for name, shape in self.extras.items():
            if name not in update.extras:
                raise UpdateRefused(f"'{name}' is missing")
            if tuple(update.extras[name].shape) != shape:
                raise UpdateRefused(f"'{name}' has shape {tuple(update.extras[name].shape)}, not {shape}")
        for name, value in (*update.weights.items(), *update.extras.items()):
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UpdateRefused(f"'{name}' holds values that are not finite")
        if any(not math.isfinite(value) for value in update.metrics.values()):
            raise UpdateRefused("its metrics are not finite")
        if self.max_norm:
            length = change_norm(update.weights, self.weights)
            if length > self.max_norm:
                raise UpdateRefused(f"moves the weights by {length:.3g}, more than {self.max_norm:.3g}")
        self.seen.add(update.client)


def _same_form(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    missing, extra = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    if missing or extra:
        raise UpdateRefused(f"tensors missing: {sorted(missing)}, unknown: {sorted(extra)}")
    for name, value in given.items():
        if value.shape != wanted[name].shape:
            raise UpdateRefused(f"'{name}' has shape {tuple(value.shape)}, not {tuple(wanted[name].shape)}")
        if value.dtype != wanted[name].dtype:
            raise UpdateRefused(f"'{name}' is {value.dtype}, not {wanted[name].dtype}")


def change_norm(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> float:
    """Euclidean length of the change over all floating tensors."""
    squares = [
        (value.double() - old[name].double()).square().sum()
        for name, value in new.items()
        if value.is_floating_point()
    ]
    return float(torch.stack(squares).sum().sqrt())
