"""FedAvg (McMahan et al., AISTATS 2017), on labelled images only, and its fully labelled upper bound.

Every client minimises the cross entropy of its labelled images, starting from the global weights; the
server replaces those by the mean of the clients' weights, weighted by how much data each holds::

    Ls    = mean over labelled images of H(y, p(weak(x)))
    Theta = sum_k gamma_k Theta_k,   gamma_k proportional to the size of client k

Deviations: none from the paper; buffers (batch-norm statistics) are averaged like weights.

The paper under comparison does not say how many steps the labelled-only baseline takes. By default it
takes as many as the semi-supervised methods (``steps = "matched"``); ``steps = "labelled"`` walks over the
labelled images instead. ``fedavg-sl`` is an oracle: it sees the true labels of all images. ``server-only`` is
what remains where the server alone has labels: it trains on them, and the clients do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from proxyfl.core.settings import setting
from proxyfl.data.stream import ClientData
from proxyfl.methods.base import NOT_AT_SERVER, Addon, Method, MethodParameters
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class FedAvgParameters(MethodParameters):
    """Parameters of labelled-only training."""

    steps: str = setting(
        "matched",
        "steps per epoch: matched = as many as semi-supervised methods; labelled = passes over labels",
        choices=("matched", "labelled"),
    )


class FedAvg(Method):
    name = "fedavg"
    Parameters = FedAvgParameters

    def steps_per_epoch(self, labelled: int, pool_steps: int, batch: int) -> int:
        return pool_steps if self.parameters.steps == "matched" else -(-labelled // batch)


class FedAvgSL(Method):
    name = "fedavg-sl"
    oracle: ClassVar[bool] = True
    undefined: ClassVar[Mapping[str, str]] = {}
    needs_labels: ClassVar[bool] = False  # as an oracle it has them wherever there are images
    walks_labelled: ClassVar[bool] = True

    def rearrange(self, data: ClientData) -> ClientData:
        return data.all_labelled()

    def refuses(self, addon: Addon) -> str:
        return "it has no unlabelled images" if "u_weak" in addon.wants else ""


class ServerOnly(Method):
    name = "server-only"
    undefined: ClassVar[Mapping[str, str]] = NOT_AT_SERVER

    def refuses(self, addon: Addon) -> str:
        return "no client trains"


register(
    Recipe("fedavg", "labelled images only, weights averaged", FedAvg),
    Shown("labelled only", 10, "black", "solid", "o"),
)
register(
    Recipe("fedavg-sl", "upper bound: every image labelled (oracle)", FedAvgSL),
    Shown("labelled only", 11, "black", "dashed", "^", page="fedavg"),
    aliases=["fedavg-full"],
)
register(
    Recipe("server-only", "lower bound: the server trains on its own labelled images alone", ServerOnly),
    Shown("labels at the server", 60, "black", "dash-dot", "s", page="fedavg"),
)
register(
    Recipe("fedprox", "labelled images only, with a proximal term", FedAvg, ("prox",)),
    Shown("labelled only", 12, "black", "dotted", "v"),
)
