"""Differential privacy of whole clients: bounded changes, Gaussian noise, and an account of what it costs.

With m participants expected in a round out of N clients, clip length C and noise multiplier z::

    d_k   = x_k - g                                     a client's change over all floating tensors
    g    <- g + (sum_k min(1, C / ||d_k||) d_k + N(0, z^2 C^2)) / m

One client moves the sum by at most C. ``where = "site"``: every client adds N(0, z^2 C^2 / m) to its own
change before it leaves, and the server what the noise of missing ones lacks. Whole-numbered tensors stay as
they were sent out; variances of batch norm are kept above zero, which costs nothing.

The account is in Rényi differential privacy, which adds up over rounds, and is turned into (epsilon, delta)
at the end::

    poisson   add or remove one client; each takes part with q = m / N (Mironov, Talwar, Zhang, 2019)
    stream    exchange one client (2 C); m of N without replacement (Wang, Balle, Kasiviswanathan, 2019)
    epsilon = min over orders a of  R(a) T + log((a - 1) / a) - (log delta + log a) / (a - 1)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import secrets
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.config import Config
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.state import ServerState, Task, Tensors, Update
from proxyfl.federation.robust import change_length
from proxyfl.federation.sampling import Population

ORDERS = (*(1 + k / 10 for k in range(1, 100)), *map(float, range(11, 65)), 80.0, 96.0, 128.0, 256.0, 512.0)
TERMS = 1000
"""Terms of the series for orders that are not whole; it alternates and falls off."""

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
"""Multipliers between which the account can be computed; below it costs without bound, above no less."""

SMALLEST_VARIANCE = 1e-5
SEED_BITS = 256


class PrivateSum:
    """A running sum of shortened changes; ``mean`` adds the noise."""

    def __init__(self, config: Config, state: ServerState, participants: float) -> None:
        self.config, self.old, self.participants = config, state.weights, participants
        self.round, self.count = state.round + 1, 0
        self._sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in _floats(self.old)}

    def add(self, weights: Mapping[str, Tensor]) -> None:
        length = self.config.privacy.clip if self.config.privacy.where == "server" else math.inf
        self.count += 1
        for name, change in bounded_change(weights, self.old, length).items():
            self._sums[name] += change

    def mean(self) -> Tensors:
        """The next weights: also without any update, since who was there must not show."""
        settings, share = self.config.privacy, 1.0
        if settings.where == "site":
            share = max(0.0, 1 - self.count / self.config.federation.per_round)
        scale = settings.noise * settings.clip * math.sqrt(share)
        noised = with_noise(self._sums, scale, _generator(self.config, self.round, SERVER))
        found = dict(self.old)
        for name, total in noised.items():
            moved = self.old[name].double() + total / self.participants
            if name.endswith("running_var"):
                moved = moved.clamp(min=SMALLEST_VARIANCE)
            found[name] = moved.to(self.old[name].dtype)
        return found


def outgoing(config: Config, task: Task, update: Update) -> Update:
    """An update as it leaves its site: where sites see to privacy, shortened, noised, without metrics."""
    settings = config.privacy
    if not settings.clip or settings.where != "site":
        return update
    change = bounded_change(update.weights, task.weights, settings.clip)
    scale = settings.noise * settings.clip / math.sqrt(config.federation.per_round)
    noised = with_noise(change, scale, _generator(config, task.round, task.client))
    weights = {
        name: (old.double() + noised[name]).to(old.dtype) if name in noised else old
        for name, old in ((name, task.weights[name]) for name in update.weights)
    }
    return dataclasses.replace(update, weights=weights, metrics={})


def bounded_change(new: Mapping[str, Tensor], old: Mapping[str, Tensor], length: float) -> Tensors:
    """``new`` minus ``old`` in float64, shortened to ``length`` where it is longer, not rounded again."""
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


def _generator(config: Config, round: int, client: int) -> torch.Generator | np.random.Generator:
    """From the system's entropy it is numpy's: torch's takes 32 bits of a seed, few enough to try all."""
    if config.privacy.draw == "system":
        return np.random.default_rng(np.random.SeedSequence(secrets.randbits(SEED_BITS), pool_size=8))
    return rng(config.seed, round, client, "privacy")


def _floats(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in tensors.items() if value.is_floating_point()]


def expected(config: Config, population: Population) -> float:
    """How many clients take part in a round, on average; the divisor of the sum."""
    return float(min(config.federation.per_round, max(1, len(population.holders))))


def spent(config: Config, rounds: int, population: Population) -> dict[str, float]:
    """Epsilon after so many rounds of these settings, and at which delta."""
    settings, clients = config.privacy, max(1, len(population.holders))
    found, order = epsilon(
        expected(config, population) / clients,
        settings.noise,
        rounds,
        settings.delta,
        poisson=config.federation.sampling == "poisson",
    )
    return {"epsilon": found, "delta": settings.delta, "order": order}


def epsilon(
    share: float, noise: float, rounds: int, delta: float, *, poisson: bool = True
) -> tuple[float, float]:
    """(epsilon, the order that gives it) after ``rounds`` in which a ``share`` of the clients takes part."""
    if not rounds or not share:
        return 0.0, ORDERS[0]
    curve = poisson_rdp if poisson else fixed_size_rdp
    found = []
    for order in ORDERS:
        cost = rounds * curve(share, noise, order)
        found.append(
            (cost + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1), order)
        )
    best, order = min(found)
    return max(0.0, best), order


@functools.lru_cache(maxsize=4096)
def poisson_rdp(share: float, noise: float, order: float) -> float:
    """Rényi divergence of one round at an order, for clients that take part with probability ``share``."""
    if not noise >= LEAST_NOISE:
        return math.inf
    noise = min(noise, MOST_NOISE)
    if share == 1:
        return order / (2 * noise**2)
    moment = (_whole_moment if order == int(order) else _broken_moment)(share, noise, order)
    return math.inf if math.isnan(moment) else max(0.0, moment / (order - 1))


def _whole_moment(share: float, noise: float, order: float) -> float:
    """log of sum_k binom(a, k) (1 - q)^(a - k) q^k e^((k^2 - k) / (2 z^2))."""
    k = torch.arange(order + 1, dtype=torch.float64)
    terms = _log_binomial(order, k) + (order - k) * math.log1p(-share) + k * math.log(share)
    return float(torch.logsumexp(terms + (k * k - k) / (2 * noise**2), 0))


def _broken_moment(share: float, noise: float, order: float) -> float:
    """The same for orders between whole ones: two series that meet where both densities are equal."""
    i = torch.arange(TERMS, dtype=torch.float64)
    meet = noise**2 * math.log(1 / share - 1) + 0.5
    size = _log_binomial(order, i)
    j = order - i
    below = i * math.log(share) + j * math.log1p(-share) + (i * i - i) / (2 * noise**2)
    above = j * math.log(share) + i * math.log1p(-share) + (j * j - j) / (2 * noise**2)
    below += torch.special.log_ndtr((meet - i) / noise)
    above += torch.special.log_ndtr((j - meet) / noise)
    terms = torch.logaddexp(below, above) + size
    sign = torch.where(i <= order, 1.0, (-1.0) ** (i - math.ceil(order)))
    top = terms.max()
    return float(top + torch.log((sign * torch.exp(terms - top)).sum()))


@functools.lru_cache(maxsize=4096)
def fixed_size_rdp(share: float, noise: float, order: float) -> float:
    """An upper bound of the divergence when exactly a ``share`` takes part and one client is exchanged.

    Sampling helps at whole orders from 2 on; the exchange moves the sum by twice the clip length.
    """
    if not noise >= LEAST_NOISE:
        return math.inf
    noise = min(noise, MOST_NOISE)
    slope = 2 / noise**2  # of the Gaussian mechanism itself, at a shift of two clip lengths
    if share == 1 or order < 2 or order != int(order):
        return slope * order
    k = torch.arange(3, order + 1, dtype=torch.float64)
    later = k * math.log(share) + _log_binomial(order, k) + (k - 1) * slope * k + math.log(2)
    two = 2 * slope
    second = min(math.log(4) + two + math.log(-math.expm1(-two)), math.log(2) + two)
    first = torch.tensor(
        [0.0, 2 * math.log(share) + math.log(order * (order - 1) / 2) + second], dtype=torch.float64
    )
    bound = float(torch.logsumexp(torch.cat([first, later]), 0)) / (order - 1)
    return bound if bound < slope * order else slope * order


def _log_binomial(n: float, k: Tensor) -> Tensor:
    """log |binom(n, k)|, also for n that are not whole."""
    return math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
