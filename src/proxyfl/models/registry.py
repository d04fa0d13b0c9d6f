"""Names for networks: the built-in ones and those a user registers. A name never imports code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import nn

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.models.heads import attach_heads
from proxyfl.models.resnet import ResNet

Factory = Callable[[int, int, int], nn.Module]
"""(classes, channels, width) → network."""

F = TypeVar("F", bound=Factory)

_factories: dict[str, Factory] = {"resnet8": ResNet}
_origins: dict[str, str] = {}


@dataclass(frozen=True)
class ModelInfo:
    """One line of a listing: ``parameters`` at width 4 for 10 classes of 3-channel images, without heads."""

    name: str
    summary: str
    parameters: int


def register(name: str) -> Callable[[F], F]:
    """Name a factory: ``@register("mine")`` above a class or function of (classes, channels, width).

    A network takes images and gives logits. Add-ons that look at features also need ``features(x)``
    of shape (N, d) and ``classifier``, an ``nn.Linear`` on them.
    """
    if not name or ":" in name:
        raise ConfigError(f"'{name}' cannot name a model: use letters, digits and dashes")

    caller = sys._getframe(1).f_globals.get("__name__", "")

    def remember(factory: F) -> F:
        if _factories.setdefault(name, factory) is not factory:
            raise ConfigError(f"a model called '{name}' is registered already; choose another name")
        _origins[name] = caller
        return factory

    return remember


def origin(name: str) -> str:
    """The module that registered the network; empty for our own."""
    return _origins.get(name, "")


def build(name: str, classes: int, channels: int = 3, width: int = 4, heads: bool = False) -> nn.Module:
    """The network called ``name``, freshly initialised; ``heads`` adds projection heads as ``net.heads``.

    Names of parameters begin with ``classifier.`` or ``heads.``; all others belong to the trunk.
    """
    for setting, value in (("classes", classes), ("channels", channels), ("width", width)):
        if value < 1:
            raise ConfigError(f"{setting} = {value} is too small for a model; use 1 or more")
    net = require(name)(classes, channels, width)
    if not isinstance(net, nn.Module):
        raise ConfigError(f"model '{name}' gave a {type(net).__name__}; it must give a torch.nn.Module")
    return attach_heads(net, name) if heads else net


def require(name: str) -> Factory:
    """The factory called ``name``, without building its network; an error when there is none."""
    if name not in _factories:
        hint = nearest(name, _factories)
        raise ConfigError(
            f"unknown model '{name}'; {hint} (your own: register it and name its file with --plugin)"
        )
    _check_accepts(_factories[name], name)
    return _factories[name]


def describe() -> list[ModelInfo]:
    """The registered networks by name."""
    infos = []
    for name, factory in sorted(_factories.items()):
        with torch.random.fork_rng(devices=[]):  # initialising draws from the global generator
            net = factory(10, 3, 4)
        first_line = (inspect.getdoc(factory) or "").partition("\n")[0]
        infos.append(ModelInfo(name, first_line, sum(p.numel() for p in net.parameters())))
    return infos


def part_of(parameter: str) -> Literal["trunk", "classifier", "heads"]:
    """Where a name of a network's state dict belongs."""
    if parameter.startswith("classifier."):
        return "classifier"
    return "heads" if parameter.startswith("heads.") else "trunk"


def _check_accepts(factory: Factory, name: str) -> None:
    try:
        inspect.signature(factory).bind(10, 3, 4)
    except TypeError as wrong:
        raise ConfigError(f"model '{name}' must accept (classes, channels, width): {wrong}") from wrong
    except ValueError:  # written in C, without a signature to look at
        return
