"""Differential privacy of whole clients: bounded changes and Gaussian noise.

With m participants expected in a round out of N clients, clip length C and noise multiplier z::

    d_k   = x_k - g                                     a client's change over all floating tensors
    g    <- g + (sum_k min(1, C / ||d_k||) d_k + N(0, z^2 C^2)) / m

One client moves the sum by at most C. ``where = "site"``: every client adds N(0, z^2 C^2 / m) to its own
change before it leaves, and the server what the noise of missing ones lacks. Whole-numbered tensors stay as
they were sent out; variances of batch norm are kept above zero, which costs nothing. What it costs in privacy
is in :mod:`proxyfl.aggregation.accountant`.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from proxyfl.aggregation.accountant import LEAST_NOISE, MOST_NOISE, epsilon
from proxyfl.aggregation.base import Accumulator, Aggregator, Round, Settled, like
from proxyfl.aggregation.change import change_length
from proxyfl.aggregation.coverage import uncovered
from proxyfl.core.config import FederationSettings, PrivacySettings, TrainSettings
from proxyfl.core.errors import ConfigError, UpdateRefused
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.state import Metrics, Task, Tensors, Update
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext

SMALLEST_VARIANCE = 1e-5
SEED_BITS = 256


@dataclass(frozen=True)
class DifferentialPrivacy(Aggregator):
    """The sum of clipped changes with Gaussian noise, over the participants that were expected.

    >>> from proxyfl.aggregation import DifferentialPrivacy
    >>> DifferentialPrivacy(clip=0.5, noise=2.0)
    DifferentialPrivacy(clip=0.5, noise=2.0, delta=1e-05, where='server', draw='seed')
    """

    clip: float = like(PrivacySettings, "privacy", "clip", default=1.0)
    noise: float = like(PrivacySettings, "privacy", "noise")
    delta: float = like(PrivacySettings, "privacy", "delta")
    where: str = like(PrivacySettings, "privacy", "where")
    draw: str = like(PrivacySettings, "privacy", "draw")
    name: ClassVar[str] = "privacy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip:
            raise ConfigError("privacy.clip = 0 would remove every change; give a norm above 0")

    @property
    def private(self) -> bool:
        return True

    @property
    def noised(self) -> bool:
        return self.where == "site"

    def refusal(self, method: Method, train: TrainSettings, federation: FederationSettings) -> str:
        """Why the noise would not cover what this run shows of a client; empty when it does."""
        if not self.noise or not 0 < self.delta < 1:
            return "privacy.clip needs privacy.noise above 0 and privacy.delta between 0 and 1"
        if not LEAST_NOISE <= self.noise <= MOST_NOISE:
            return (
                f"privacy.noise = {self.noise:g} is outside the supported range; "
                f"choose it between {LEAST_NOISE:g} and {MOST_NOISE:g}"
            )
        if federation.weighting != "uniform":
            return (
                "privacy.clip needs federation.weighting = 'uniform': the contribution of each "
                "client must be bounded"
            )
        if federation.sampling == "legacy":
            return "privacy.clip needs a sample that nobody can predict; set federation.sampling = 'poisson'"
        if train.leak_momentum:
            return (
                "privacy.clip does not cover the momentum that clients pass on; set "
                "train.leak_momentum = false"
            )
        if reason := uncovered(method):
            return f"differential privacy does not cover {method.name}: {reason}"
        return ""

    def outgoing(self, update: Update, task: Task, *, per_round: int, seed: int) -> Update:
        """Where sites see to privacy, the update is clipped, noised, and goes without metrics."""
        if self.where != "site":
            return update
        change = bounded_change(update.weights, task.weights, self.clip)
        scale = self.noise * self.clip / math.sqrt(per_round)
        noised = with_noise(change, scale, self.generator(seed, task.round, task.client))
        weights = {
            name: (old.double() + noised[name]).to(old.dtype) if name in noised else old
            for name, old in ((name, task.weights[name]) for name in update.weights)
        }
        return dataclasses.replace(update, weights=weights, metrics={})

    def spent(self, rounds: int, federation: FederationSettings, holders: int) -> Metrics:
        """Epsilon after so many rounds, and at which delta."""
        share = expected(federation.per_round, holders) / max(1, holders)
        poisson = federation.sampling == "poisson"
        found, order = epsilon(share, self.noise, rounds, self.delta, poisson=poisson)
        return {"epsilon": found, "delta": self.delta, "order": order}

    def begin(self, round: Round) -> PrivateSum:
        return PrivateSum(self, round)

    def generator(self, seed: int, round: int, client: int) -> torch.Generator | np.random.Generator:
        """From the system's entropy it is numpy's: torch's takes 32 bits of a seed, few enough to try all."""
        if self.draw == "system":
            return np.random.default_rng(np.random.SeedSequence(secrets.randbits(SEED_BITS), pool_size=8))
        return rng(seed, round, client, "privacy")


class PrivateSum(Accumulator):
    """A running sum of clipped changes; ``mean`` adds the noise."""

    def __init__(self, settings: DifferentialPrivacy, round: Round) -> None:
        self.settings, self.round, self.old, self.count = settings, round, round.state.weights, 0
        self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in _floats(self.old)}

    def admit(self, update: Update) -> Update:
        if update.extras or update.carry:
            raise UpdateRefused("sends more than weights, which differential privacy does not cover here")
        return update

    def add(self, update: Update, weight: float) -> None:
        length = self.settings.clip if self.settings.where == "server" else math.inf
        self.count += 1
        for name, change in bounded_change(update.weights, self.old, length).items():
            self._sums[name] += change

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        return Settled(self.mean(), list(range(len(kept))), kept)

    def mean(self) -> Tensors:
        """The next weights: also without any update, since who was there must not show."""
        settings, share = self.settings, 1.0
        if settings.where == "site":
            share = max(0.0, 1 - self.count / self.round.per_round)
        scale = settings.noise * settings.clip * math.sqrt(share)
        generator = settings.generator(self.round.seed, self.round.state.round + 1, SERVER)
        participants = expected(self.round.per_round, self.round.holders)
        found = dict(self.old)
        for name, total in with_noise(self._sums, scale, generator).items():
            moved = self.old[name].double() + total / participants
            if name.endswith("running_var"):
                moved = moved.clamp(min=SMALLEST_VARIANCE)
            found[name] = moved.to(self.old[name].dtype)
        return found


def expected(per_round: int, holders: int) -> float:
    """How many clients take part in a round, on average; the divisor of the sum."""
    return float(min(per_round, max(1, holders)))


def bounded_change(new: Mapping[str, Tensor], old: Mapping[str, Tensor], length: float) -> Tensors:
    """``new`` minus ``old`` in float64, clipped to ``length`` where it is longer, not rounded again."""
    found = change_length(new, old)
    factor = length / found if found > length else 1.0
    return {name: factor * (value.double() - old[name].double()) for name, value in _floats(new)}


def with_noise(
    tensors: Mapping[str, Tensor], scale: float, generator: torch.Generator | np.random.Generator
) -> Tensors:
    """Plus normal numbers, drawn by name in alphabetical order."""
    return {
        name: tensors[name].double() + scale * _normal(tensors[name].shape, generator)
        for name in sorted(tensors)
    }


def _normal(shape: torch.Size, generator: torch.Generator | np.random.Generator) -> Tensor:
    if isinstance(generator, torch.Generator):
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.as_tensor(generator.standard_normal(tuple(shape)))


def _floats(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in tensors.items() if value.is_floating_point()]
