"""What a network costs: parameters, work for an image, numbers that travel; as a whole and layer by layer.

Work is counted by torch: a multiplication and an addition are two operations; norms, activations and pooling
are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from proxyfl.models.registry import Network, names, require

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own, ``trained`` of which are not frozen. ``flops`` and ``shape`` (of
    what it gives) are for one image.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    trained: int
    flops: int


@dataclass(frozen=True)
class Cost:
    """Of a network for one image; ``state`` is how many numbers travel, buffers included, ``bytes`` their
    size.
    """

    parameters: int
    trained: int
    state: int
    bytes: int
    flops: int
    layers: tuple[Layer, ...]


def measure(network: Network) -> Cost:
    """Build a network, give it one image, and count."""
    with torch.random.fork_rng(devices=[]):  # initialising draws from the global generator
        return _measured(network.adapt(network()), network)


def summary(name: str) -> str:
    """The first line of what a registered network says about itself."""
    factory = require(name)
    factory = getattr(factory, "func", factory)
    if isinstance(factory, type) and not vars(factory).get("__doc__"):
        return ""  # what it inherits is about nn.Module
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def listing(**sizes: Any) -> Iterator[tuple[str, str, Cost | None]]:
    """Name, summary and cost of every registered network for images and classes of these sizes; no cost where
    it cannot take them.
    """
    for name in names():
        try:
            cost = measure(Network.of(name, **sizes))
        except Exception:  # somebody's own may refuse in any way, and the others are listed all the same
            cost = None
        yield name, summary(name), cost


def _measured(net: nn.Module, network: Network) -> Cost:
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            shapes[module] = tuple(output.shape[1:])

    image = torch.zeros(1, *network.shape)
    hooks = [module.register_forward_hook(note) for module in net.modules()]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.eval()(image)
    for hook in hooks:
        hook.remove()
    work = {name: sum(found.values()) for name, found in counter.get_flop_counts().items()}
    layers = tuple(
        Layer(
            name,
            type(module).__name__,
            shapes.get(module, ()),
            trained + _frozen(module),
            trained,
            work.get(f"{type(net).__name__}.{name}" if name else type(net).__name__, 0),
        )
        for name, module in net.named_modules()
        if (trained := sum(p.numel() for p in module.parameters(recurse=False))) or _frozen(module)
    )
    state = net.state_dict().values()
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        trained=sum(layer.trained for layer in layers),
        state=sum(value.numel() for value in state),
        bytes=sum(value.numel() * value.element_size() for value in state),
        flops=counter.get_total_flops(),
        layers=layers,
    )


def _frozen(module: nn.Module) -> int:
    """Frozen parameters, which buffers are not."""
    return sum(
        value.numel()
        for name, value in module.named_buffers(recurse=False)
        if name in vars(module).get("frozen", ()) and name not in STATISTICS
    )
