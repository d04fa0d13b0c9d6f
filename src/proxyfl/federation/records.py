"""Differential privacy of single images: DP-SGD (Abadi et al., 2016) in the training of each client.

Every step draws each image by a coin of its own, clips the gradient of each image and adds noise to their
sum::

    batch    each labelled image with q = B / n, each unlabelled one with q = mu B / n
    gradient (sum over images of clip(g_i, C) + N(0, z^2 C^2)) / B
    cost     of a round: as many steps of the Poisson-sampled Gaussian mechanism as a client takes

What a client sends is computed from such steps alone; losses and other sums about its images are not sent.
The gradients of single images are Opacus's, the accounting is that of :mod:`proxyfl.aggregation.accountant`.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from proxyfl.aggregation.accountant import LEAST_NOISE, MOST_NOISE, epsilon
from proxyfl.core.config import Config, PrivacySettings, TrainSettings
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.rng import rng
from proxyfl.core.spans import OPTIMISER, span
from proxyfl.core.state import Metrics, Task
from proxyfl.data.stream import Batch, steps_of
from proxyfl.federation.sampling import Population
from proxyfl.methods.base import Method
from proxyfl.methods.context import ClientContext
from proxyfl.models.norm import GroupNorm

SEED_BITS = 256
SLACK = 1e-3
"""By how much the gradients of single images may differ from that of all of them, from rounding."""

MOST_SIZES = 20
"""Of more different sizes of clients the largest share counts with the most steps, which bounds them all."""

Sampler = Callable[[nn.Module, list[Tensor], Tensor], dict[nn.Parameter, Tensor]]
"""From a layer, its inputs and the gradients of its outputs to the gradients of single images."""

HARMLESS = frozenset(
    {"steps_per_epoch", "learning_rate", "refuses", "refusal", "serve", "receive", "weights", "weight_of"}
)
"""What a method may do differently from the one whose losses of single images it inherits: numbers of steps,
and what the server makes of updates."""


@dataclass(frozen=True)
class RecordPrivacy:
    """``clip`` bounds the gradient of each image, ``noise`` is in units of it."""

    clip: float
    noise: float
    delta: float
    draw: str

    @classmethod
    def of(cls, privacy: PrivacySettings) -> RecordPrivacy | None:
        """As the settings say; None where they ask for none."""
        if not privacy.record_clip:
            return None
        return cls(privacy.record_clip, privacy.record_noise, privacy.delta, privacy.draw)

    def begin(self, seed: int, task: Task) -> RecordRound:
        """One client's round."""
        if self.draw == "system":
            entropy = np.random.SeedSequence(secrets.randbits(SEED_BITS), pool_size=8)
            return RecordRound(self, np.random.default_rng(entropy))
        return RecordRound(self, rng(seed, task.round, task.client, "records"))

    def spent(self, rounds: int, train: TrainSettings, method: Method, population: Population) -> Metrics:
        """The largest epsilon of an image of any client, had that taken part in every round so far."""
        pairs = zip(population.labelled.tolist(), population.unlabelled.tolist(), strict=True)
        sizes = {_exposure(train, method, *pair) for pair in pairs if any(pair)}
        if len(sizes) > MOST_SIZES:
            sizes = {(max(share for share, _ in sizes), max(steps for _, steps in sizes))}
        found = [epsilon(share, self.noise, rounds * steps, self.delta) for share, steps in sizes]
        cost, order = max(found, default=(0.0, 0.0))
        return {"epsilon": cost, "delta": self.delta, "order": order}


def _exposure(train: TrainSettings, method: Method, labelled: int, unlabelled: int) -> tuple[float, int]:
    """(how likely a step uses an image, steps of a round) of a client with so many images."""
    steps = steps_of(train, labelled, unlabelled, walk_labelled=method.walks_labelled)
    steps = max(1, method.steps_per_epoch(labelled, steps, train.batch))
    share = train.batch / labelled if labelled else 0.0
    if unlabelled and uses_unlabelled(method):
        share = max(share, train.batch * train.mu / unlabelled)
    return min(1.0, share), train.epochs * steps


class RecordRound:
    """What is drawn in a client's round, and its steps."""

    def __init__(self, settings: RecordPrivacy, generator: torch.Generator | np.random.Generator) -> None:
        self.settings, self.generator = settings, generator
        self.own: dict[nn.Parameter, Tensor] = {}

    def sample(self, count: int, batch: int) -> Tensor:
        """Positions of the images of a step, ``batch`` of ``count`` on average."""
        if isinstance(self.generator, torch.Generator):
            coins = torch.rand(count, generator=self.generator, dtype=torch.float64)
        else:
            coins = torch.from_numpy(self.generator.random(count))
        return torch.nonzero(coins < min(1.0, batch / max(1, count))).flatten()

    @contextmanager
    def watching(self, ctx: ClientContext) -> Iterator[None]:
        """Let every layer leave the gradients of single images in ``own``."""
        samplers, hooks = grad_samplers(), []
        for name, part in ctx.model.named_modules():
            if next(part.parameters(recurse=False), None) is None:
                continue
            if type(part) not in samplers:
                raise ConfigError(
                    f"privacy.record_clip: no gradients of single images are known for '{name}' "
                    f"({type(part).__name__}); choose another network"
                )
            hooks.append(part.register_forward_hook(self._watch(samplers[type(part)])))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, sampler: Sampler) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def watch(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not torch.is_grad_enabled():
                return
            given = _plain(inputs[0].detach())

            def leave(gradient: Tensor) -> None:
                for parameter, each in sampler(layer, [given], _plain(gradient)).items():
                    before = self.own.get(parameter)
                    self.own[parameter] = each if before is None else before + each

            output.register_hook(leave)  # type: ignore[no-untyped-call]

        return watch

    def step(self, batch: Batch, ctx: ClientContext) -> None:
        """One step on clipped and noised gradients; also without any image, since that must not show."""
        given = [p for group in ctx.optimiser.param_groups for p in group["params"]]
        ctx.optimiser.zero_grad(set_to_none=True)
        self.own.clear()
        expected = self._backward(batch, ctx)
        for parameter in given:
            _require_sum(parameter, self.own.get(parameter))
        norms = (self.own[p].double().square().flatten(1).sum(1) for p in given if p in self.own)
        squares = sum(norms, torch.zeros((), dtype=torch.float64))
        factor = (self.settings.clip / squares.sqrt()).clamp(max=1.0)
        factor = factor.where(squares.isfinite(), 0.0).float()  # an image without a gradient has no say
        scale = self.settings.noise * self.settings.clip
        for parameter in given:
            noise = scale * self._normal(parameter.shape).to(parameter.device)
            each = self.own.get(parameter)
            total = 0.0 if each is None else torch.tensordot(factor, each.nan_to_num(0.0, 0.0, 0.0), dims=1)
            parameter.grad = ((total + noise) / expected).to(parameter.dtype)
        with span(OPTIMISER):
            ctx.optimiser.step()
        ctx.steps += 1

    def _backward(self, batch: Batch, ctx: ClientContext) -> float:
        """Let every image leave its gradient; how many labelled images a step expects, which divides them."""
        size, stream = ctx.settings.batch, ctx.stream
        labelled = min(size, len(stream.data.labelled))
        unlabelled = min(size * ctx.settings.mu, len(stream.pool)) if uses_unlabelled(ctx.method) else 0
        if len(batch.x) + len(batch.u_strong):
            outputs = ctx.forward(batch)
            ctx.method.decide(outputs, ctx)
            own, pseudo = ctx.method.record_losses(outputs, ctx)
            both = torch.cat([own, pseudo * ((labelled or unlabelled) / max(1, unlabelled))])
            if both.requires_grad:
                both.sum().backward()  # type: ignore[no-untyped-call]
        return float(max(1, labelled or unlabelled))

    def _normal(self, shape: torch.Size) -> Tensor:
        if isinstance(self.generator, torch.Generator):
            return torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return torch.as_tensor(self.generator.standard_normal(tuple(shape)))


def _require_sum(parameter: nn.Parameter, each: Tensor | None) -> None:
    """The gradients of single images must add up to that of all of them, or the network has a layer for which
    something else was computed.
    """
    if parameter.grad is None:
        return
    total = torch.zeros_like(parameter) if each is None else each.sum(0)
    if float((total - parameter.grad).norm()) > SLACK * (1.0 + float(parameter.grad.norm())):
        raise MethodError(
            f"privacy.record_clip: the gradients of single images of a layer of shape "
            f"{tuple(parameter.shape)} do not add up; choose another network"
        )


def _plain(tensor: Tensor) -> Tensor:
    """A copy in the usual order of memory, as Opacus reads it: where channels come last it is silently wrong.
    What is changed in place later stays as it was here.
    """
    return tensor.clone(memory_format=torch.contiguous_format)


def uses_unlabelled(method: Method) -> bool:
    return "u_strong" in method.all_wants


def grad_samplers() -> Mapping[type[nn.Module], Sampler]:
    """How Opacus computes the gradients of single images, layer by layer."""
    try:
        from opacus.grad_sample.conv import compute_conv_grad_sample
        from opacus.grad_sample.group_norm import compute_group_norm_grad_sample
        from opacus.grad_sample.layer_norm import compute_layer_norm_grad_sample
        from opacus.grad_sample.linear import compute_linear_grad_sample
    except ImportError:
        raise ConfigError(
            "privacy.record_clip needs Opacus; install it with: pip install 'proxyfl[dp]'"
        ) from None
    return {
        nn.Conv2d: compute_conv_grad_sample,
        nn.Linear: compute_linear_grad_sample,
        nn.GroupNorm: compute_group_norm_grad_sample,
        GroupNorm: compute_group_norm_grad_sample,
        nn.LayerNorm: compute_layer_norm_grad_sample,
    }


def require_network(network: nn.Module) -> None:
    """Refuse a network whose layers mix the images of a batch."""
    kind = nn.modules.batchnorm._BatchNorm
    mixing = [name for name, part in network.named_modules() if isinstance(part, kind)]
    if mixing:
        raise ConfigError(
            f"privacy.record_clip: '{mixing[0]}' normalises over a batch, so that no image has a gradient of "
            "its own; set model.norm = 'group'"
        )


def unsupported(method: Method) -> str:
    """Why the gradient of a method is no sum over single images; empty when it is."""
    if method.oracle:
        return f"{method.name} is given labels that no client has"
    if method.addons:
        return f"+{method.addons[0].name} has no losses of single samples"
    for cls in type(method).__mro__:
        if "record_losses" in vars(cls):
            return ""
        own = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
        if other := sorted({*own} - HARMLESS):
            return f"{method.name} has no losses of single samples (it overrides {other[0]})"
    return ""


def check(config: Config, method: Method) -> None:
    """Refuse settings under which the account would not hold."""
    privacy = config.privacy
    if not privacy.record_clip:
        return
    if privacy.clip:
        raise ConfigError("privacy.clip and privacy.record_clip protect different things; use one of them")
    if not LEAST_NOISE <= privacy.record_noise <= MOST_NOISE or not 0 < privacy.delta < 1:
        raise ConfigError(
            f"privacy.record_clip needs privacy.record_noise from {LEAST_NOISE:g} to {MOST_NOISE:g} and "
            "privacy.delta between 0 and 1"
        )
    if reason := unsupported(method):
        raise ConfigError(
            f"privacy.record_clip cannot be used: {reason}; choose fedavg or a FixMatch, or leave it at 0"
        )
    if config.model.norm != "group":
        raise ConfigError("privacy.record_clip needs networks that mix no images; set model.norm = 'group'")
    if config.model.trainable != "all" or config.model.lora_rank:
        raise ConfigError(
            "privacy.record_clip trains whole networks; set model.trainable = 'all' and model.lora_rank = 0"
        )
    if config.compute.dtype != "fp32":
        raise ConfigError("privacy.record_clip needs single precision; set compute.dtype = 'fp32'")
    if config.train.leak_momentum:
        raise ConfigError("privacy.record_clip needs train.leak_momentum = false")
    if uses_unlabelled(method) and config.train.pool == "all":
        raise ConfigError(
            "train.pool = 'all' uses labelled images twice in a step, which privacy.record_clip does not "
            "count; set train.pool = 'unlabelled'"
        )
    if getattr(method.parameters, "over", "batch") != "batch":
        raise ConfigError(
            "method.over = 'selected' divides by what other images decide; privacy.record_clip needs 'batch'"
        )
