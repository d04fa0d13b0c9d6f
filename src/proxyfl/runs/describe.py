"""Objects as a config: what a run built from them writes down, and what its identity is made of.

Names that begin with ``object:`` stand for what only the program that made the run has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from proxyfl import models
from proxyfl.aggregation.base import Aggregator
from proxyfl.aggregation.build import described
from proxyfl.core.config import Config, KeepSettings, TrainSettings, read_config
from proxyfl.core.dealing import PARTIAL
from proxyfl.core.errors import ConfigError
from proxyfl.core.settings import OBJECT
from proxyfl.core.state import Tensors, content_hash
from proxyfl.core.trees import dotted
from proxyfl.data.partition import Partition
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.models import Network
from proxyfl.runs.settings import check_together, with_dtype
from proxyfl.runs.simulation import Simulation
from proxyfl.runs.views import named_views


def describe(
    simulation: Simulation,
    network: Network,
    method: Method,
    aggregator: Aggregator,
    *,
    seed: int,
    train: TrainSettings | None,
    federation: Mapping[str, Any],
    compute: Mapping[str, Any],
    keep: KeepSettings | None,
    start: Tensors | None,
    optimiser: Any = None,
    fidelity: str = "clean",
) -> Config:
    """The settings of a federation of objects, held to the same rules as those of a file."""
    dataset, partition = simulation.dataset, simulation.partition
    name, parameters = registry.described(method)
    aggregation, privacy = described(aggregator)
    tree = {
        "seed": seed,
        "data": {"name": f"{OBJECT}{dataset.name}", **named_views(dataset, simulation.views, fidelity)},
        "labels": _scenario(partition),
        "partition": {"scheme": "given", "clients": partition.clients},
        "model": {
            "name": models.name_of(network.factory) or f"{OBJECT}{network.name}",
            "width": network.width,
            "norm": network.norm,
            "trainable": network.trainable,
            **_adapters(network),
            "weights": f"{OBJECT}weights" if start else "",
            "weights_hash": content_hash(start) if start else "",
        },
        "vectors": dataclasses.asdict(simulation.train_views.vectors),
        "train": {**(dataclasses.asdict(train) if train else {}), **_named(optimiser)},
        "federation": {name: value for name, value in federation.items() if value is not None},
        "aggregation": aggregation,
        "privacy": privacy,
        "compute": dict(compute),
        "keep": dataclasses.asdict(keep or KeepSettings()),
        "method": {"name": name, **parameters},
    }
    config = read_config(tree, fidelity)
    check_together(config, method, aggregator)
    return with_dtype(config)


def _scenario(partition: Partition) -> dict[str, Any]:
    some = {"clients": int((partition.labelled.sizes > 0).sum())} if partition.where == PARTIAL else {}
    return {"where": partition.where, **some}


def _adapters(network: Network) -> dict[str, Any]:
    lora = network.lora
    if lora is None:
        return {}
    return {"lora_rank": lora.rank, "lora_targets": lora.targets, "lora_alpha": lora.alpha}


def _named(optimiser: Any) -> dict[str, str]:
    """An optimiser of one's own, by the name of its function or class."""
    if optimiser is None:
        return {}
    return {"optimiser": f"{OBJECT}{getattr(optimiser, '__name__', type(optimiser).__name__)}"}


def objects_of(table: Mapping[str, Any]) -> list[str]:
    """What of a config's tables only the program that made the run has, in words."""
    flat = dotted(table)
    places = ("data.name", "model.name", "method.name", "aggregation.rule", "train.optimiser")
    named = {place: str(flat.get(place)) for place in places}
    return [
        f"{what} '{name.removeprefix(OBJECT)}'" for what, name in named.items() if name.startswith(OBJECT)
    ]


def require_names(table: Mapping[str, Any], place: str) -> None:
    """Refuse to build from a config what was made of objects."""
    if found := objects_of(table):
        raise ConfigError(
            f"{place} was recorded from Python objects ({', '.join(found)}); continue it "
            f"in Python: build the same Federation and call .resume({place!r})"
        )
