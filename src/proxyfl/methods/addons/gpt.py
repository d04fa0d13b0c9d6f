"""Global proxy tuning (GPT), the server's half of ProxyFL (Chen and Wang, CVPR 2026).

The rows of a classifier stand for its classes: they are proxies. Plain averaging lets outlier clients pull a
proxy away from its class. So the server moves the averaged rows to where the clients' rows of the same class
are near and those of other classes are far. Omega starts at the mean of the M clients' rows w_m,c; Q epochs
of plain gradient descent lower, with r_c = sqrt(||w - Omega_c||^2 + 1e-12)::

    margin = min(max_c min_c' ||Omega_c - Omega_c'||, 100)  over c' other than c, at the start
    l(w, y) = -log [ e^-(r_y + margin) / (e^-(r_y + margin) + sum of e^-r_c over c other than y) ]
    Lgpt    = mean over the rows (w, y) of a mini-batch of l(w, y)                   ``anchor = "local"``
    Lgpt    = sum_m sum_c -log [ e^-||Omega_c - w_m,c|| / sum_c' e^-||Omega_c - w_m,c'|| ]    "global"

The gradient is written out, and in numpy: thousands of tiny steps a round are then spent on arithmetic
instead of autograd, dispatch and threads. The classifier's bias stays the plain average.

Deviations: the default is the released program, each client's row against the proxies, with a margin and in
mini-batches of 4. The printed text has each proxy against one client's rows, no margin and one sum over all,
and leaves the distance open; ``fidelity = "paper"`` takes that, with the Euclidean distance. Epochs are a
parameter of their own; the release derives them from a total per data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxyfl.core.errors import ConfigError, MethodError, nearest
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update
from proxyfl.methods.base import Addon
from proxyfl.methods.context import ServerContext
from proxyfl.methods.registry import register_addon

MAX_MARGIN = 100.0
EPSILON = 1e-12
"""Distances are √(d² + ε), which has a slope at zero."""
CHUNK = 2**17
"""Numbers held at once as differences between rows and proxies: what fits in a core's cache."""

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]


def proxy_margin(average: Tensor) -> float:
    """How far the most isolated proxy is from its nearest neighbour; at most 100."""
    if len(average) < 2:
        return 0.0
    proxies = _full_precision(average.detach())
    distances = _distances(proxies, proxies).fill_diagonal_(torch.inf)
    return min(float(distances.min(1).values.max()), MAX_MARGIN)


def proxy_loss(proxies: Tensor, local: Tensor, *, margin_value: float = 0.0, anchor: str = "local") -> Tensor:
    """The loss of the proxies Ω (C, d) against the rows w (M, C, d) of M clients.

    Anchor "local": mean over rows of −log softmax_c(−‖w_mc − Ω_·‖), each row against all proxies.
    Anchor "global": sum over rows of −log softmax_c(−‖Ω_c − w_m·‖), each proxy against one client's rows.
    ``margin_value`` is added to the distance of the true class.
    """
    distances = _distances(_full_precision(local), _full_precision(proxies))
    if _is_global(anchor):
        distances = distances.transpose(1, 2)
    distances = distances + margin_value * torch.eye(len(proxies)).to(distances)
    losses = distances.diagonal(dim1=1, dim2=2) + torch.logsumexp(-distances, dim=2)
    return losses.sum() if _is_global(anchor) else losses.mean()


def tune_proxies(
    average: Tensor,
    local: Tensor,
    *,
    epochs: int,
    lr: float,
    batch: int | None = None,
    margin: bool = True,
    anchor: str = "local",
    generator: torch.Generator | None = None,
) -> Tensor:
    """``average`` (C, d) after ``epochs`` passes of gradient descent on its loss with ``local`` (M, C, d).

    A pass is one step over all rows, or steps over ``batch`` rows each in an order drawn from ``generator``
    (None: always the same order).
    The margin is that of ``average``, or none. Steps this small run on the CPU whatever the device.
    """
    if batch is not None and batch < 1:
        raise ConfigError(f"gpt.batch = {batch} needs 1 row or more; None takes all rows")
    generator = generator or torch.Generator().manual_seed(0)
    change = _global_change if _is_global(anchor) else _local_change
    proxies = _full_precision(average.detach().cpu()).numpy().copy()
    rows = _full_precision(local.detach().cpu()).numpy().astype(proxies.dtype)
    margin_value = proxy_margin(average) if margin else 0.0
    eye = np.eye(len(proxies), dtype=proxies.dtype)
    count = rows.shape[0] * rows.shape[1]
    chunk = max(CHUNK // max(proxies.size, 1), 1)
    for _ in range(epochs if count else 0):
        order = np.arange(count) if batch is None else torch.randperm(count, generator=generator).numpy()
        for step in _slices(order, batch or count):
            rate = lr if _is_global(anchor) else lr / len(step)
            moves = [change(proxies, rows, part, eye, margin_value) for part in _slices(step, chunk)]
            for move in moves:
                proxies += rate * move
    return torch.from_numpy(proxies).to(average.device, average.dtype)


def _slices(order: Indices, size: int) -> list[Indices]:
    return [order[start : start + size] for start in range(0, len(order), size)]


def _local_change(proxies: Floats, rows: Floats, part: Indices, eye: Floats, margin: float) -> Floats:
    """Minus the gradient of Ω_c, Σ_b k_bc (w_b − Ω_c), over the rows b of ``part``."""
    toward = rows.reshape(-1, rows.shape[2])[part] - proxies[:, None]
    pull = _pull(toward, eye[:, part % len(proxies)], margin, axis=0)
    return np.asarray((pull[:, None] @ toward)[:, 0])


def _global_change(proxies: Floats, rows: Floats, part: Indices, eye: Floats, margin: float) -> Floats:
    """Minus the gradient of Ω_c, Σ_m Σ_c' k_mc' (w_mc' − Ω_c), over the rows (m, c) of ``part``."""
    label = part % len(proxies)
    toward = rows[part // len(proxies)] - proxies[label][:, None]
    pull = _pull(toward, eye[label], margin, axis=1)
    change = np.zeros_like(proxies)
    np.add.at(change, label, (pull[:, None] @ toward)[:, 0])
    return change


def _pull(toward: Floats, target: Floats, margin: float, axis: int) -> Floats:
    """k = (1[true class] − softmax(−r)) / r: the slope of the loss in a distance r, over that distance."""
    distances = np.sqrt(np.einsum("ijd,ijd->ij", toward, toward) + EPSILON)
    costs = distances + margin * target
    odds = np.exp(costs.min(axis, keepdims=True) - costs)
    return np.asarray((target - odds / odds.sum(axis, keepdims=True)) / distances)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return (torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist").square() + EPSILON).sqrt()


def _full_precision(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _is_global(anchor: str) -> bool:
    if anchor not in ("local", "global"):
        raise ConfigError(f"gpt.anchor = '{anchor}' is unknown; {nearest(anchor, ('local', 'global'))}")
    return anchor == "global"


@dataclass(frozen=True)
class GPTParameters:
    """Parameters of global proxy tuning."""

    epochs: int = setting(100, "passes over the clients' rows per round (Q)", low=0)
    lr: float = setting(0.005, "step size of plain gradient descent", low=0)
    batch: int = setting(4, "rows in a mini-batch; 0 takes all at once", low=0, paper=0)
    margin: bool = setting(True, "add the largest nearest distance to the true class", paper=False)
    anchor: str = setting(
        "local",
        "local: each client row against the proxies, mean; global: each proxy against a client's rows, sum",
        choices=("local", "global"),
        paper="global",
    )


@register_addon
class GPT(Addon):
    name = "gpt"
    sends = "nothing in addition to the weights: the server reads every client's classifier rows"
    Parameters = GPTParameters

    def start(self, ctx: ServerContext) -> Tensors:
        if "classifier.weight" not in ctx.weights:
            raise MethodError(
                "proxy tuning needs a network whose last layer is called classifier and is trained"
            )
        return {}

    def receive(self, update: Update) -> Tensors:
        return {"rows": update.weights["classifier.weight"]}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        average, local = ctx.weights["classifier.weight"], torch.stack([tensors["rows"] for tensors in kept])
        options = self.parameters
        tuned = tune_proxies(
            average,
            local,
            epochs=options.epochs,
            lr=options.lr,
            batch=options.batch or None,
            margin=options.margin,
            anchor=options.anchor,
            generator=ctx.rng("proxies"),
        )
        margin = proxy_margin(average) if options.margin else 0.0
        ctx.metrics["proxy_loss"] = {
            "margin": margin,
            "before": float(proxy_loss(average, local, margin_value=margin, anchor=options.anchor)),
            "after": float(proxy_loss(tuned, local, margin_value=margin, anchor=options.anchor)),
        }
        ctx.snapshots["proxies/tuned"] = tuned
        ctx.weights["classifier.weight"] = tuned
        return {}
