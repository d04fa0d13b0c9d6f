"""FedDB (Zhu et al., IJCAI 2024): pseudo-labels and aggregation freed from the bias towards some classes.

At the start of its round a client measures what the global model predicts on average over its pool and
divides predictions by that, so that classes named too often count less; labels found this way stay fixed for
the round. The server chooses the weights of the mean so that the clients' average predictions add up to
uniform::

    a_k    = mean over the pool of pG(weak u)                        (at least 1e-6)
    q_i(c) = pG_i(c) / a_k(c), normalised;  yhat_i = lab(q_i),  mask_i = [conf(q_i) >= tau]
    Lu     = mean over selected images of H(yhat_i, pS_i)
    a_k   <- 0.5 a_k + 0.5 mean of pL(weak u) over the batch, sent at the end
    w      = argmin over the simplex of mean_c (sum_k w_k a_k(c) - 1/C)^2

``solver = "release"`` repeats the released procedure, whose softmax keeps weights near uniform;
``"simplex_qp"`` solves the problem.

Deviations: the shared optimiser protocol instead of the original's
(lr 0.03, Nesterov, cosine, gradient clipping, full-batch steps, batch norm without statistics);
``server_momentum`` (0.5 in the release) is off by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.settings import setting
from proxyfl.core.state import Tensors, Update, namespace
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.fixmatch import FixMatch, PseudoLabelParameters
from proxyfl.methods.registry import Recipe, Shown, register

SMALLEST = 1e-6
OFF_ONE = 1e-2
"""How far from one the shares of an average prediction may add up, by rounding and the least share."""


@dataclass(frozen=True)
class FedDBParameters(PseudoLabelParameters):
    """Parameters of FedDB."""

    momentum: float = setting(0.5, "share of the average prediction kept each step", low=0, high=1)
    over: str = setting(
        "selected",
        "selected: batches of selected images only; batch: batches of all images, the others contribute zero",
        choices=("selected", "batch"),
    )
    solver: str = setting(
        "release", "how the aggregation weights are computed", choices=("release", "simplex_qp")
    )
    solver_steps: int = setting(100, "steps of the released solver", low=0)
    server_momentum: float = setting(0.0, "momentum of the server's update; 0: plain average", low=0, high=1)


class FedDB(FixMatch):
    name = "feddb"
    sends: ClassVar[str] = "average prediction up (C numbers)"
    needs_all_updates: ClassVar[bool] = True
    shows_steps: ClassVar[bool] = False
    takes_masks: ClassVar[bool] = False
    Parameters = FedDBParameters

    def begin(self, ctx: ClientContext) -> None:
        probabilities = ctx.pool_predictions
        uniform = torch.full((ctx.classes,), 1 / ctx.classes, device=ctx.device)
        average = probabilities.mean(0) if len(probabilities) else uniform
        debiased = debias(probabilities, average)
        ctx.memory["average"] = average.clamp(min=SMALLEST)
        ctx.memory["label"], ctx.memory["mask"] = debiased.argmax(1), self.confident(debiased)
        if self.parameters.over == "selected" and not self._shares_pool:
            ctx.stream.restrict(ctx.memory["mask"].nonzero()[:, 0])

    @property
    def _shares_pool(self) -> bool:
        """Whether an add-on learns from the images that are not selected, too."""
        return any("u_weak" in addon.wants for addon in self.addons)

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        index = outputs.batch.u_index
        pseudo = Pseudo(ctx.memory["label"][index], ctx.memory["mask"][index])
        ctx.memory["average"] = average_update(
            ctx.memory["average"], outputs.local_weak, self.parameters.momentum, pseudo.mask
        )
        return pseudo

    def finish(self, ctx: ClientContext) -> Tensors:
        pool = torch.arange(len(ctx.memory["label"]), device=ctx.device)
        ctx.show(pool, label=ctx.memory["label"], mask=ctx.memory["mask"])
        return {"average": ctx.memory["average"]}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        return {"average": (ctx.classes,)}

    def receive(self, update: Update) -> Tensors:
        average = update.extras["feddb/average"]
        if bool((average < 0).any()) or abs(float(average.double().sum()) - 1) > OFF_ONE:
            raise UpdateRefused("its average prediction is not a distribution")
        return {"average": average}

    def weights(self, ctx: ServerContext, kept: Sequence[Tensors]) -> list[float]:
        averages = torch.stack([tensors["average"] for tensors in kept]).double()
        if self.parameters.solver == "release":
            found = release_weights(averages, self.parameters.solver_steps)
        else:
            found = simplex_weights(averages)
        ctx.metrics["client_weights"] = found.tolist()
        return found.tolist()

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        if not self.parameters.server_momentum:
            return {}
        velocity = namespace(ctx.extras, "feddb/_velocity")
        for name, value in ctx.weights.items():
            if value.is_floating_point():
                change = value - ctx.previous[name]
                velocity[name] = self.parameters.server_momentum * velocity.get(name, 0.0) + change
                moved = ctx.previous[name] + velocity[name]
                ctx.weights[name] = moved.clamp(min=0) if name.endswith("running_var") else moved
        return {f"_velocity/{name}": value for name, value in velocity.items()}


def debias(probabilities: Tensor, average: Tensor) -> Tensor:
    """Probabilities divided by their average and normalised again."""
    scaled = probabilities / average.clamp(min=SMALLEST)
    return scaled / scaled.sum(1, keepdim=True)


def average_update(
    average: Tensor, batch: Tensor, momentum: float = 0.5, mask: Tensor | None = None
) -> Tensor:
    """The average prediction after a batch of predictions, those where ``mask`` is true; none leave it."""
    chosen = torch.ones_like(batch[:, 0]) if mask is None else mask.to(batch.dtype)
    mean = (batch * chosen[:, None]).sum(0) / chosen.sum().clamp(min=1)
    return torch.where(chosen.any(), momentum * average + (1 - momentum) * mean, average)


def release_weights(averages: Tensor, steps: int = 100) -> Tensor:
    """The released procedure: fresh Nesterov steps (1.9 × gradient, lr 1, decay 0.9), softmax after each."""
    clients, classes = averages.shape
    weights = averages.new_full((clients,), 1 / clients)
    for _ in range(steps):
        slope = 2 / classes * averages @ (weights @ averages - 1 / classes)
        weights = torch.softmax(weights - 1.9 * (slope + 0.9 * weights), 0)
    return weights


def simplex_weights(averages: Tensor, ridge: float = 1e-6) -> Tensor:
    """The minimiser over the simplex of mean_c (sum_k w_k a_k - 1/C)^2 + ridge ||w - uniform||^2, w >= 0.

    An exact active-set solution: clients whose weight would be negative leave, those that would gain return.
    """
    averages = averages.double()
    clients, classes = averages.shape
    quadratic = averages @ averages.T / classes + ridge * torch.eye(clients, dtype=torch.float64)
    linear = averages.sum(1) / classes**2 + ridge / clients
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    active = torch.ones(clients, dtype=torch.bool)
    for _ in range(50 * clients):
        target = _on_support(quadratic, linear, active)
        move = target - weights
        blocking = (move < 0) & (target < 0)
        if blocking.any():
            reach = torch.where(blocking, -weights / move, torch.inf)
            weights = (weights + float(reach.min()) * move).clamp(min=0)
            active[int(reach.argmin())] = False
            weights[~active] = 0
            continue
        weights = target
        slope = quadratic @ weights - linear
        gain = slope - slope[active].mean()
        gain[active] = 0
        if float(gain.min()) > -1e-14:
            break
        active[int(gain.argmin())] = True
    return weights


def _on_support(quadratic: Tensor, linear: Tensor, active: Tensor) -> Tensor:
    """The minimiser over all weights that add up to one and are zero outside ``active``."""
    index = active.nonzero()[:, 0]
    count = len(index)
    system = torch.ones(count + 1, count + 1, dtype=torch.float64)
    system[:count, :count] = quadratic[index][:, index]
    system[count, count] = 0
    right = torch.cat([linear[index], torch.ones(1, dtype=torch.float64)])
    weights = torch.zeros(len(active), dtype=torch.float64)
    weights[index] = torch.linalg.solve(system, right)[:count]
    return weights


register(
    Recipe("feddb", "debiased pseudo-labels, debiased aggregation weights", FedDB),
    Shown("federated SSL", 33, "orange", "solid", "P"),
)
