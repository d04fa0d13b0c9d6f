"""Static batch norm (Diao et al., NeurIPS 2022): statistics of the global model over unaugmented images.

In training such layers compute with the batch and keep no statistics. After each mean the round's clients are
asked for sums over their images, as the new model sees them layer by layer; the server divides them::

    mean = sum_k sum_i m_i / n,   var = sum_k sum_i q_i / n - mean²

m_i and q_i are the means of x and x² over the positions of image i, channel by channel. Sums leave a client,
never images: in the original program all images are brought together for this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.state import STATISTICS, Failure, Task, Tensors, Update
from proxyfl.models import STATIC_NORMS

if TYPE_CHECKING:
    from proxyfl.federation.loop import Server
    from proxyfl.federation.traffic import Traffic
    from proxyfl.methods.context import ServerContext

MEAN, SQUARE, RUNNING = "mean", "square", ".running_mean"
LARGEST = 1e15
"""No mean of activations is larger; its square can still be computed with."""

SLACK = 1e-6
"""By how much of the mean square rounding may make a variance negative."""


@torch.no_grad()
def sums(network: nn.Module, batches: Iterable[Tensor]) -> Tensors:
    """What a client sends: for each layer with static norm that travels, the sums of m_i and of q_i."""
    found: Tensors = {}
    state = network.state_dict().keys()
    layers = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, STATIC_NORMS) and f"{name}{RUNNING}" in state
    }
    network.eval()
    for layer in layers.values():
        layer.train()
    with _watched(layers, found):
        for images in batches:
            network(images)
    return found


@contextmanager
def _watched(layers: Mapping[str, nn.Module], found: Tensors) -> Iterator[None]:
    def watch(name: str) -> object:
        def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].double()
            x = x.reshape(*x.shape[:2], -1)
            for kind, value in ((MEAN, x), (SQUARE, x.square())):
                total = value.mean(2).sum(0).cpu()
                found[f"{name}/{kind}"] = found.get(f"{name}/{kind}", 0) + total

        return note

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def gather(server: Server, ctx: ServerContext, clients: list[int], traffic: Traffic) -> None:
    """Ask the clients for their sums and put the statistics into the weights; those who fail are left out.
    Where no client took part, the server's own images take their place; without those the old ones stay.
    """
    state = server.method.model(ctx.weights)
    names = [name.removesuffix(RUNNING) for name in state if name.endswith(RUNNING)]
    if not names or not (clients or server.own):
        return
    shapes = {f"{name}/{kind}": state[f"{name}{RUNNING}"].shape for name in names for kind in (MEAN, SQUARE)}
    total, images, failed = dict.fromkeys(shapes, torch.zeros(())), 0, dict[str, str]()
    extras: Tensors = {}  # one for all tasks: engines know a broadcast by it

    def tasks() -> Iterator[Task]:
        for client in clients:
            task = Task(ctx.round, client, ctx.weights, extras, purpose=STATISTICS)
            traffic.sent(task)
            yield task

    for client, answer in zip(clients, server.engine.run(tasks()), strict=True):
        try:
            usable = _usable(answer, client, shapes, int(server.population.sizes[client]))
        except UpdateRefused as refused:
            failed[str(client)] = str(refused)
            continue
        traffic.received(usable)
        total = {name: total[name] + usable.extras[name] for name in shapes}
        images += usable.samples
    if server.own is not None and not clients:
        total, images = server.own.measure(ctx.round, ctx.weights), len(server.own)
    ctx.metrics["statistics"] = {"images": images, "failed": failed}
    if images:
        pairs = ((total[f"{name}/{MEAN}"], total[f"{name}/{SQUARE}"]) for name in names)
        found = {name: statistics(*pair, images) for name, pair in zip(names, pairs, strict=True)}
        means = {f"{name}{RUNNING}": mean for name, (mean, _) in found.items()}
        variances = {f"{name}.running_var": variance for name, (_, variance) in found.items()}
        ctx.weights = ctx.weights | server.method.initial(means | variances)


def statistics(mean: Tensor, square: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Mean and variance from sums over so many images."""
    centre = mean / images
    return centre.float(), (square / images - centre.square()).clamp(min=0).float()


def _usable(
    answer: Update | Failure, client: int, shapes: Mapping[str, torch.Size], registered: int
) -> Update:
    """An answer that can be added up; raises :class:`UpdateRefused`."""
    if isinstance(answer, Failure):
        raise UpdateRefused(answer.reason)
    if answer.client != client or type(answer.samples) is not int or not 0 < answer.samples <= registered:
        raise UpdateRefused(f"refused: claims {str(answer.samples)[:40]} images, registered {registered}")
    if answer.weights or answer.carry or answer.extras.keys() != shapes.keys():
        raise UpdateRefused("refused: its sums are not those that were requested")
    for name, value in answer.extras.items():
        if value.shape != shapes[name] or value.dtype != torch.float64:
            raise UpdateRefused(f"refused: '{name}' is not of the form that was requested")
        if not bool((value.abs() <= LARGEST * answer.samples).all()):
            raise UpdateRefused(f"refused: '{name}' holds values beyond {LARGEST:g}")
    for name in (name for name in shapes if name.endswith(f"/{MEAN}")):
        mean, square = answer.extras[name], answer.extras[f"{name.removesuffix(MEAN)}{SQUARE}"]
        mean, square = mean / answer.samples, square / answer.samples
        if bool((square * (1 + SLACK) < mean.square()).any()):
            raise UpdateRefused(f"refused: '{name}' leaves a variance below zero")
    return answer
