"""The optimisers of local training."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.config import TrainSettings

OptimiserFactory = Callable[[list[nn.Parameter], float, TrainSettings], torch.optim.Optimizer]
"""(parameters, the round's learning rate, training settings) → an optimiser."""


def usual_optimiser(parameters: list[nn.Parameter], lr: float, train: TrainSettings) -> torch.optim.Optimizer:
    """SGD or AdamW, as the settings say."""
    if train.optimiser == "adamw":
        betas = (train.beta1, train.beta2)
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=train.weight_decay)
    return SGD(
        parameters, lr=lr, momentum=train.momentum, weight_decay=train.weight_decay, nesterov=train.nesterov
    )


class SGD(torch.optim.SGD):
    """The SGD of torch to the bit, without torch's compiler: that takes more than a second to import,
    in every process that trains.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        inspect.unwrap(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            if moved:
                self._descend(moved, group)
        return loss

    def _descend(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        steps: list[Tensor] = [parameter.grad for parameter in moved if parameter.grad is not None]
        momentum = group["momentum"]
        if group["weight_decay"]:
            steps = list(torch._foreach_add(steps, moved, alpha=group["weight_decay"]))
        if momentum:
            buffers = self._buffers(moved, steps, momentum)
            nesterov = group["nesterov"]
            steps = list(torch._foreach_add(steps, buffers, alpha=momentum)) if nesterov else buffers
        torch._foreach_add_(moved, steps, alpha=-group["lr"])

    def _buffers(self, moved: list[Tensor], steps: list[Tensor], momentum: float) -> list[Tensor]:
        """The moving sums, this step taken in. The first step of a tensor is its sum."""
        kept = [self.state[parameter] for parameter in moved]
        pairs = [(state["momentum_buffer"], step) for state, step in zip(kept, steps, strict=True) if state]
        if pairs:
            buffers, added = map(list, zip(*pairs, strict=True))
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, added)
        for state, step in zip(kept, steps, strict=True):
            if not state:
                state["momentum_buffer"] = step.detach().clone()
        return [state["momentum_buffer"] for state in kept]
