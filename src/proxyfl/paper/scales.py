"""At which size the paper's experiments are run: its own, a reduced one for two cores, one for tests.

A scale gives each data set of the paper a *protocol*: a preset, and settings that differ from it. Those are
data, in ``protocols/``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.trees import Tree

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "cinic10": "CINIC-10"}
"""The paper's data sets, in its order."""

TITLES = {**DATA, "digits": "digits", "fashion-mnist": "Fashion-MNIST"}
TUNING_SEEDS = (101, 102)
"""On which reduced protocols are chosen. They are never reported."""


@dataclass(frozen=True)
class Protocol:
    """How one data set is used: a preset and what differs from it. ``why`` tells where that is from.

    With ``own_split`` every seed draws its own labelled images and partition. ``warm`` are the settings of
    the FedAvg run whose last weights all methods start from; without any they start from the seed's.
    ``methods`` holds settings for single methods: ramps in rounds, as much shorter as the runs.
    """

    preset: str
    settings: Tree = field(default_factory=dict)
    tried: bool = True
    why: str = ""
    own_split: bool = False
    warm: Tree = field(default_factory=dict)
    methods: Mapping[str, Tree] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Protocols by data set of the paper. ``extra`` are data sets that the paper does not have.

    ``stand_in`` is the data set of figures and tables that the paper has for a single one.
    """

    name: str
    title: str
    seeds: int
    protocols: Mapping[str, Protocol]
    targets: tuple[float, ...]
    relative: bool = True
    extra: tuple[str, ...] = ()
    stand_in: str = ""

    @property
    def comparable(self) -> bool:
        """Whether results can be held against the published ones."""
        return self.name == "full"

    @property
    def warning(self) -> str:
        """What to say beside published numbers; empty where they can be compared."""
        return "" if self.comparable else f"Scale {self.name}: not comparable with the published column."


NAMES = ("full", "mini", "micro")
TARGETS = (0.3, 0.4, 0.5)
"""Accuracies to which the paper counts rounds."""

RELATIVE_TARGETS = (0.52, 0.70, 0.87)
"""At other scales: shares of the best mean of last rounds, as 30, 40 and 50 % are of the paper's 57.5 %."""


@cache
def scale(name: str) -> Scale:
    """The scale of that name."""
    if name == "full":
        protocols = {data: Protocol(data) for data in DATA}
        return Scale(name, "the paper's own protocol", 3, protocols, TARGETS, relative=False)
    if name == "mini":
        protocols = {data: _read(f"mini-{data}") for data in TITLES}
        title = "reduced, for at most 15 core-minutes per run; all but digits from a common start"
        extra = ("digits", "fashion-mnist")
        return Scale(name, title, 3, protocols, RELATIVE_TARGETS, extra=extra, stand_in="svhn")
    if name == "micro":
        protocols = dict.fromkeys(DATA, _read("micro"))
        title = "seconds per run, to check that everything works: every column is digits"
        return Scale(name, title, 1, protocols, RELATIVE_TARGETS)
    raise ConfigError(f"unknown scale '{name}'; {nearest(name, NAMES)}")


def protocol_text(name: str) -> str:
    """A protocol's file as it is written."""
    file = resources.files("proxyfl.paper").joinpath("protocols", f"{name}.toml")
    return file.read_text(encoding="utf-8")


def _read(name: str) -> Protocol:
    table = tomllib.loads(protocol_text(name))
    return Protocol(
        table["preset"],
        table.get("set", {}),
        table["tried"],
        table["why"],
        table.get("own_split", False),
        table.get("warm", {}),
        table.get("methods", {}),
    )
