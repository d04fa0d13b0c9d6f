"""Names for networks: the built-in ones and those a user registers. A name never imports code."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from torch import nn

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.network import ModelSettings
from proxyfl.core.state import Tensors
from proxyfl.models.cnn import CNN
from proxyfl.models.heads import attach_heads
from proxyfl.models.lora import LoRA, add_adapters, merged
from proxyfl.models.mlp import MLP, Adapter, LinearModel
from proxyfl.models.norm import with_norm
from proxyfl.models.resnet import ResNet
from proxyfl.models.resnet18 import ResNet18
from proxyfl.models.trainable import ALL, freeze
from proxyfl.models.wrn import wide_resnet

Factory = Callable[..., nn.Module]
"""(classes, channels, width, image_size, inputs), or those of them that it names → network."""

F = TypeVar("F", bound=Factory)

LARGEST_LAYER = 65_536

_factories: dict[str, Factory] = {
    "resnet8": ResNet, "resnet18": ResNet18, "cnn": CNN, "linear": LinearModel, "mlp": MLP,
    "adapter": Adapter,
}  # fmt: skip
_families: tuple[Callable[[str], Factory | None], ...] = (wide_resnet,)
"""What makes a factory of a name with numbers in it."""

_made: dict[str, Factory] = {}
"""The factories that families made, by name."""


@overload
def register(name: str) -> Callable[[F], F]: ...


@overload
def register(name: F) -> F: ...


def register(name: str | F) -> Callable[[F], F] | F:
    """Register a network: a decorator for a class or function with any of the parameters ``classes``,
    ``channels``, ``width`` and ``image_size``.

    ``@register_model("mine")`` sets the name; ``@register_model`` alone uses the class's name in lower case.
    A network takes images and returns logits. Add-ons that use features also need ``features(x)`` of
    shape (N, d) and ``classifier``, an ``nn.Linear`` on them. Example, as a file::

        from proxyfl import register_model
        from torch import nn

        @register_model
        class Perceptron(nn.Module):
            def __init__(self, classes, channels, width):
                super().__init__()
                self.body = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten())
                self.body.append(nn.Linear(64 * channels, 16 * width)).append(nn.ReLU())
                self.classifier = nn.Linear(16 * width, classes)

            def features(self, x):
                return self.body(x)

            def forward(self, x):
                return self.classifier(self.features(x))

    ``proxyfl --plugin FILE run --set model.name=perceptron`` trains it.
    """
    if isinstance(name, str):
        return _named(name)
    return _named(getattr(name, "__name__", "").lower())(name)


def _named(name: str) -> Callable[[F], F]:
    if not name or set(name) & set(":<>"):
        raise ConfigError(f"'{name}' cannot name a model: use letters, digits and dashes")

    def remember(factory: F) -> F:
        if _factories.setdefault(name, factory) is not factory:
            raise ConfigError(f"a model called '{name}' is registered already; choose another name")
        return factory

    return remember


def name_of(factory: object) -> str:
    """The name a factory is registered under; empty where it is not."""
    return next((name for name, known in (_factories | _made).items() if known is factory), "")


@dataclass(frozen=True)
class Network:
    """How to build a network: calling it gives a fresh one. Names of parameters begin with ``classifier.`` or
    ``heads.``; all others belong to the trunk.

    ``factory`` is a class or function that takes ``classes``, ``channels``, ``width`` and ``image_size``, or
    those of them that it names, or nothing; or a network, which is copied. ``inputs``, the numbers in a
    sample, and the settings ``hidden`` and ``dropout`` are for those that name them. An ``image_size`` of 0
    means vectors of ``channels`` features. ``norm`` is what becomes of its batch norm, ``trainable`` and
    ``lora`` say which part of it is trained (:meth:`adapt`).
    """

    name: str
    factory: Callable[..., nn.Module] | nn.Module
    classes: int
    channels: int = 3
    width: int = 4
    image_size: int = 32
    norm: str = "batch"
    trainable: str = ALL
    lora: LoRA | None = None
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0

    @classmethod
    def of(cls, factory: Any, classes: int, channels: int, width: int = 4, **more: Any) -> Network:
        """From a registered name, a class, a function or a network. ``more`` are fields beside these."""
        sizes = (classes, channels, width)
        if isinstance(factory, str):
            return cls(factory, require(factory), *sizes, **more)
        if isinstance(factory, nn.Module):
            return cls(type(factory).__name__, factory, *sizes, **more)
        if not callable(factory):
            raise ConfigError(
                f"{factory!r} is not a network; give a registered name, an nn.Module class or a function"
            )
        return cls(getattr(factory, "__name__", type(factory).__name__), factory, *sizes, **more)

    @classmethod
    def configured(cls, model: ModelSettings, classes: int, channels: int, image_size: int) -> Network:
        """The network that the settings name, for these samples."""
        return cls.of(
            model.trained,
            classes,
            channels,
            model.width,
            image_size=image_size,
            norm=model.norm,
            trainable=model.trainable,
            lora=LoRA(model.lora_rank, model.lora_targets, model.lora_alpha) if model.lora_rank else None,
            hidden=model.hidden,
            dropout=model.dropout,
        )

    def _options(self) -> dict[str, Any]:
        """The settings of some networks alone, where they are not at their default; others refuse them."""
        options = {"hidden": self.hidden, "dropout": self.dropout}
        chosen = {name: value for name, value in options.items() if value}
        named = () if isinstance(self.factory, nn.Module) else inspect.signature(self.factory).parameters
        for name in chosen:
            if name not in named:
                raise ConfigError(f"model '{self.name}' has no model.{name}; leave it out, or choose mlp")
        if not all(type(size) is int and 0 < size <= LARGEST_LAYER for size in self.hidden):
            raise ConfigError(
                f"model.hidden = {list(self.hidden)} must be whole numbers from 1 to {LARGEST_LAYER:,}"
            )
        return chosen

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        return (self.channels, self.image_size, self.image_size) if self.image_size else (self.channels,)

    @property
    def is_partial(self) -> bool:
        """Whether less than the whole network is trained."""
        return self.trainable != ALL or self.lora is not None

    def adapt(self, net: nn.Module) -> nn.Module:
        """``net`` with its adapters, and with what is not trained frozen: its state is then what travels."""
        if self.lora is not None:
            add_adapters(net, self.lora, self.name)
        return freeze(net, self.trainable, self.name) if self.is_partial else net

    def whole(self, plain: Tensors, trained: Tensors) -> Tensors:
        """The state of the plain network, from the one it began with and what was trained of it."""
        return merged(plain, trained, self.lora.scale if self.lora else 0.0) if self.is_partial else trained

    def __call__(self, heads: bool = False) -> nn.Module:
        """A network, freshly initialised; ``heads`` adds projection heads as ``net.heads``."""
        sizes = {name: getattr(self, name) for name in SIZES}
        for setting, value in sizes.items():
            if value < 1 and setting != "image_size":
                raise ConfigError(f"{setting} = {value} is too small for a model; use 1 or more")
        if isinstance(self.factory, nn.Module):
            net = copy.deepcopy(self.factory)
        else:
            more = {"inputs": math.prod(self.shape), **self._options()}
            net = self.factory(**_accepted(self.factory, self.name, sizes | more))
        if not isinstance(net, nn.Module):
            given = type(net).__name__
            raise ConfigError(f"model '{self.name}' returned a {given}; it must return a torch.nn.Module")
        net = with_norm(net, self.norm, self.name)
        return attach_heads(net, self.name) if heads else net


def build(
    name: str, classes: int, channels: int = 3, width: int = 4, heads: bool = False, **more: Any
) -> nn.Module:
    """The registered network called ``name``, freshly initialised; ``more`` as in :meth:`Network.of`."""
    return Network.of(name, classes, channels, width, **more)(heads)


def require(name: str) -> Factory:
    """The factory called ``name``, without building its network; an error when there is none."""
    found = _factories.get(name) or _made.get(name)
    for family in _families if found is None else ():
        if (made := family(name)) is not None:
            found = _made.setdefault(name, made)
    if found is None:
        hint = nearest(name, names())
        raise ConfigError(
            f"unknown model '{name}'; {hint} (your own: register it and name its file with --plugin)"
        )
    _accepted(found, name, dict.fromkeys((*SIZES, "inputs"), 10))
    return found


def names() -> list[str]:
    """Every registered network, and of each family some."""
    return sorted([*_factories, *SHOWN])


def part_of(parameter: str) -> Literal["trunk", "classifier", "heads"]:
    """Where a name of a network's state dict belongs."""
    if parameter.startswith("classifier."):
        return "classifier"
    return "heads" if parameter.startswith("heads.") else "trunk"


SIZES = ("classes", "channels", "width", "image_size")
"""What a factory may ask for."""

SHOWN = ("wrn-16-1", "wrn-28-2")
"""Members of families that a listing has."""

OTHER_NAMES = {
    "num_classes": "classes",
    "n_classes": "classes",
    "in_channels": "channels",
    "in_features": "inputs",
    "input_dim": "inputs",
}
"""What parameters of other people's networks are called, and what that is here."""


def _accepted(factory: Callable[..., Any], name: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of the sizes that a factory names, by its own name for them; ``inputs`` if it has no default. One
    that takes any keyword gets classes, channels and width, and what it names.
    """
    usual = {size: sizes[size] for size in SIZES if size != "image_size"}
    try:
        known = inspect.signature(factory).parameters.values()
    except ValueError:  # written in C, without a signature to look at
        return usual
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        return usual | {p.name: sizes[p.name] for p in known if p.name in sizes}
    meant = {p.name: OTHER_NAMES.get(p.name, p.name) for p in known}
    given = {p.name: sizes[meant[p.name]] for p in known
             if meant[p.name] in sizes and (meant[p.name] != "inputs" or p.default is p.empty)}  # fmt: skip
    needed = [p.name for p in known if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    missing = [parameter for parameter in needed if parameter not in given]
    if missing:
        raise ConfigError(
            f"model '{name}' must accept (classes, channels, width) or fewer of them, but also asks for "
            f"{', '.join(missing)}; give a function of (classes, channels) that builds it"
        )
    return given
