"""Low-rank adapters (LoRA; Hu et al., ICLR 2022) for the linear and convolutional layers of any network.

A layer's weight W stays as it is; what is trained is a change of low rank beside it::

    W' = W + alpha / rank · B A,   A (rank, inputs) drawn, B (outputs, rank) zero at the start

The learning rate that trained a network whole also trains its adapters where they count about once (alpha =
rank); the step of W grows with the square of alpha / rank.

A convolution's kernel counts as one row per output channel. The classifier and projection heads are left out:
they are small, and methods read their rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Tensors
from proxyfl.core.text import listed

FIRST, SECOND = "lora_a", "lora_b"
"""Names of A and B beside a layer's weight."""


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters of this rank; ``targets`` are comma-separated patterns of layer names.

    >>> import proxyfl
    >>> proxyfl.LoRA(rank=4, targets="*.stage3.*", alpha=8.0).scale
    2.0
    """

    rank: int = 4
    targets: str = "*"
    alpha: float = 0.0
    """The change is scaled by alpha / rank; 0: by 1."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank if self.alpha else 1.0


class LowRankLinear(nn.Linear):
    scale: float

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, effective(self), self.bias)


class LowRankConv2d(nn.Conv2d):
    scale: float

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self._conv_forward(x, effective(self), self.bias)
        return found


KINDS: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: LowRankLinear, nn.Conv2d: LowRankConv2d}
"""Layers that can have an adapter. Not their subclasses, which may use the weight in other ways."""


def add_adapters(net: nn.Module, lora: LoRA, name: str) -> nn.Module:
    """``net`` with an adapter at every layer that the targets name; ``name`` is for the error message."""
    able = {
        layer: module
        for layer, module in net.named_modules()
        if type(module) in KINDS and layer.partition(".")[0] not in ("classifier", "heads")
    }
    for pattern in split(lora.targets):
        if not any(fnmatchcase(layer, pattern) for layer in able):
            raise ConfigError(
                f"model.lora_targets: '{pattern}' names no layer of '{name}' that can have an adapter; "
                f"{'it has ' + listed([*able]) if able else 'it has none outside its classifier'}"
            )
    for layer, module in able.items():
        if any(fnmatchcase(layer, pattern) for pattern in split(lora.targets)):
            _adapt(module, lora)
    return net


def _adapt(module: nn.Module, lora: LoRA) -> None:
    weight = module.get_parameter("weight")
    inputs = weight[0].numel()
    first = torch.empty(lora.rank, inputs, dtype=weight.dtype, device=weight.device)
    nn.init.kaiming_uniform_(first, a=math.sqrt(5))
    module.__class__ = KINDS[type(module)]
    module.scale = lora.scale  # type: ignore[assignment]
    module.register_parameter(FIRST, nn.Parameter(first))
    module.register_parameter(SECOND, nn.Parameter(weight.new_zeros(len(weight), lora.rank)))


def is_adapter(name: str) -> bool:
    """Whether a name of a network's state is that of an adapter's half."""
    return name.endswith((f".{FIRST}", f".{SECOND}"))


def is_adapted(module: nn.Module) -> bool:
    return isinstance(module, LowRankLinear | LowRankConv2d)


def effective(layer: nn.Module) -> Tensor:
    """The weight that an adapted layer computes with."""
    weight, first, second = (getattr(layer, name) for name in ("weight", FIRST, SECOND))
    return changed(weight, first, second, getattr(layer, "scale", 1.0))


def changed(weight: Tensor, first: Tensor, second: Tensor, scale: float) -> Tensor:
    """W + scale · B A, in full precision wherever it is computed: what is saved is what was used."""
    with torch.autocast(weight.device.type, enabled=False):
        return weight + scale * (second @ first).reshape(weight.shape)


def merge(net: nn.Module) -> nn.Module:
    """``net`` with every adapter made part of its layer's weight, in place."""
    for module in net.modules():
        if is_adapted(module):
            weight = effective(module).detach()
            for name in ("weight", FIRST, SECOND):
                delattr(module, name)
            module.weight = nn.Parameter(weight, requires_grad=False)
            module.__class__ = next(kind for kind, low in KINDS.items() if isinstance(module, low))
    return net


def merged(plain: Tensors, trained: Tensors, scale: float) -> Tensors:
    """The state of the plain network: its own tensors ``plain``, those that were trained in their place, and
    what adapters make of the others.
    """
    state = plain | {name: value for name, value in trained.items() if name in plain}
    for name, first in trained.items():
        layer, _, kind = name.rpartition(".")
        if kind == FIRST:
            weight = f"{layer}.weight"
            state[weight] = changed(plain[weight], first, trained[f"{layer}.{SECOND}"], scale)
    return state


def split(patterns: str) -> list[str]:
    """Patterns with commas between them."""
    return [word for part in patterns.split(",") if (word := part.strip())]
