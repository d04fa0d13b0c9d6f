"""From an item and a scale to runs: which there are, where they lie, which data they need."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, ProxyFLError, nearest
from proxyfl.core.trees import merge, nested
from proxyfl.data import sources
from proxyfl.data.files import data_root
from proxyfl.paper.catalogue import Column, Item, Row
from proxyfl.paper.scales import TITLES, Scale, scale
from proxyfl.runs.batch import Job
from proxyfl.runs.experiment import load_config
from proxyfl.runs.settings import default_name

KEYS = ("data", "alpha", "method", "row")
"""By what a part of an item can be chosen."""

Choice = Mapping[str, Sequence[str]]
"""Values by key; a case must have one of them for each key."""


@dataclass(frozen=True)
class Case:
    """Where a row and a column of an item meet: one set of settings, run once per seed."""

    item: Item
    scale: Scale
    row: Row
    column: Column
    device: str = "cpu"

    @property
    def key(self) -> tuple[str, str]:
        return self.row.label, self.column.key

    @property
    def ratio(self) -> float:
        return self.item.ratio if self.row.ratio is None else self.row.ratio

    @property
    def settings(self) -> dict[str, Any]:
        """What the case sets on top of its data set's protocol, by dotted key."""
        longer = self.item.full if self.scale.comparable else {}
        spread = {"partition.alpha": self.column.alpha, "labels.ratio": self.ratio}
        place = {} if self.device == "cpu" else {"compute.device": self.device}
        return {**self.item.settings, **longer, **self.row.settings, **spread, **place}

    @cached_property
    def config(self) -> Config:
        return _config(self.scale.name, self.column.data, self.row.method, json.dumps(self.settings))

    def job(self, seed: int, folder: Path, root: Path | None = None) -> Job:
        config = dataclasses.replace(self.config, seed=seed)
        own = [f"{key.rpartition('.')[2]} {value}" for key, value in self.row.settings.items()]
        labels = [f"labels {self.ratio:g}"] if self.ratio != 0.1 else []
        words = [self.config.method.name, self.config.data.name, f"alpha {self.column.alpha:g}"]
        name = " · ".join([*words, *labels, *own, f"seed {seed}"])
        return Job(name, config, folder / default_name(config), root)


@cache
def _config(scale_name: str, data: str, method: str, settings: str) -> Config:
    protocol = scale(scale_name).protocols[data]
    return load_config(protocol.preset, merge(protocol.settings, nested(json.loads(settings))), method)


def columns(item: Item, size: Scale, only: Choice | None = None) -> list[Column]:
    """The columns of an item that are asked for; data sets that the paper lacks have to be named."""
    only = only or {}
    alphas = dict.fromkeys(column.alpha for column in item.columns)
    more = [Column(data, alpha) for data in size.extra for alpha in alphas if data in only.get("data", ())]
    return [
        column
        for column in (*item.columns, *more)
        if column.data in only.get("data", [column.data])
        and f"{column.alpha:g}" in only.get("alpha", [f"{column.alpha:g}"])
    ]


def cases(item: Item, size: Scale, only: Choice | None = None, device: str = "cpu") -> list[Case]:
    """The cases of an item that are asked for: each of its rows in each column, as far as it is chosen."""
    only = only or {}
    return [
        Case(item, size, row, column, device)
        for column in columns(item, size, only)
        for row in item.rows
        if row.label in only.get("row", [row.label]) and row.method in only.get("method", [row.method])
    ]


def check_choice(item: Item, only: Choice) -> None:
    """Refuse rows, methods and alphas that an item does not have; data sets are the scale's."""
    there = {
        "row": [row.label for row in item.rows],
        "method": [row.method for row in item.rows],
        "alpha": [f"{column.alpha:g}" for column in item.columns],
    }
    for key, known in there.items():
        for value in only.get(key, ()):
            if value not in known:
                names = list(dict.fromkeys(known))
                cure = f"it has {', '.join(names)}" if key == "alpha" and names else nearest(value, names)
                raise ConfigError(f"{item.name} has no {key} '{value}'; {cure}")


def part(item: Item, chosen: Iterable[Case]) -> Item:
    """An item with no other rows than those of the cases."""
    labels = {case.row.label for case in chosen}
    return dataclasses.replace(item, rows=tuple(row for row in item.rows if row.label in labels))


def read_choice(text: str, size: Scale) -> Choice:
    """``data=cifar10,alpha=0.1`` as a choice; a key that is given twice may have either value."""
    only: dict[str, list[str]] = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in KEYS:
            raise ConfigError(f"'{part}' must be like data=cifar10; keys: {', '.join(KEYS)}")
        if key == "data" and value not in size.protocols:
            raise ConfigError(
                f"scale {size.name} has no data set '{value}'; {nearest(value, size.protocols)}"
            )
        if key == "alpha":
            try:
                value = f"{float(value):g}"
            except ValueError:
                raise ConfigError(f"'{part}' must be a number, as in alpha=0.1") from None
        only.setdefault(key, []).append(value)
    return only


def jobs(wanted: Iterable[Case], seeds: Iterable[int], folder: Path, root: Path | None = None) -> list[Job]:
    """Each run once, however many cases need it."""
    seeds = list(seeds)
    found = (case.job(seed, folder, root) for case in wanted for seed in seeds)
    return list({job.path: job for job in found}.values())


def absent(names: Iterable[str], root: Path | None = None) -> dict[str, str]:
    """Those of the data sets that are not at hand, each with how to get it."""
    missing: dict[str, str] = {}
    for name in dict.fromkeys(names):
        source = sources.find(name)
        try:
            present = source.locate(data_root(root)).present
        except ProxyFLError:
            present = False
        if not present:
            where = f" --data-root {root}" if root else ""
            missing[name] = f"proxyfl data fetch {name}{where}"
    return missing


def data_of(case: Case) -> str:
    """The data set that a case is run on, which at small scales is not that of its column."""
    return case.config.data.name


def column_title(data: str, size: Scale) -> str:
    """A data set as a heading, with what it stands for at this scale."""
    preset = size.protocols[data].preset
    return TITLES[data] if preset == data else f"{TITLES[data]} (here {preset})"
