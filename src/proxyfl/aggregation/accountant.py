"""What the noise of differential privacy amounts to after some rounds.

The account is in Rényi differential privacy, which adds up over rounds, and is turned into (epsilon, delta)
at the end::

    poisson   add or remove one client; each takes part with q = m / N (Mironov, Talwar, Zhang, 2019)
    stream    exchange one client (2 C); m of N without replacement (Wang, Balle, Kasiviswanathan, 2019)
    epsilon = min over orders a of  R(a) T + log((a - 1) / a) - (log delta + log a) / (a - 1)

Google's dp-accounting agrees (the tests hold its values) and installs, but brings scipy, dm-tree, mpmath,
wrapt and an attrs below 24 in place of these eighty lines, and is a little looser between whole orders.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

ORDERS = (*(1 + k / 10 for k in range(1, 100)), *map(float, range(11, 65)), 80.0, 96.0, 128.0, 256.0, 512.0)
TERMS = 1000
"""Terms of the series for orders that are not whole; it alternates and falls off."""

LEAST_NOISE, MOST_NOISE = 1e-3, 1e6
"""Multipliers between which the account can be computed; below it costs without bound, above no less."""


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
