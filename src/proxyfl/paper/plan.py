"""From an item and a scale to runs: which there are, where they lie, which data they need."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.checksum import read_verified
from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError, nearest
from proxyfl.core.state import content_hash
from proxyfl.core.trees import dotted, merge, nested
from proxyfl.paper.catalogue import item
from proxyfl.paper.items import Column, Item, Row
from proxyfl.paper.questions import COMMON_START
from proxyfl.paper.scales import DATA, TITLES, Protocol, Scale
from proxyfl.runs.batch import Job
from proxyfl.runs.experiment import load_config
from proxyfl.runs.settings import default_name, identities

if TYPE_CHECKING:
    from proxyfl.paper.results import Result


KEYS = ("data", "alpha", "method", "row")
"""By what a part of an item can be chosen."""

WARM_SEEDS = 1000
"""Added to the seed of a common start, so that what follows does not repeat its clients and batches."""


class Known(dict[str, "Result"]):
    """Runs that are finished, here or on another machine, by identity.

    ``starts`` is the folder of weights that runs started from, each named by its hash.
    """

    starts: Path | None = None

    def find(self, config: Config) -> Result | None:
        """The run of these settings, in whatever precision: machines differ in which one they compute in."""
        return next((self[name] for name in identities(config).values() if name in self), None)


UNKNOWN = "0" * 64
"""In place of the hash of weights that are not made yet."""

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
    warming: bool = False

    @property
    def protocol(self) -> Protocol:
        return self.scale.protocols[self.column.data]

    @cached_property
    def start(self) -> Case | None:
        """The case whose last weights this one starts from: FedAvg on the same data, labels and partition."""
        if self.warming or self.item.scratch or not self.protocol.warm:
            return None
        row = dataclasses.replace(COMMON_START, ratio=self.ratio)
        return Case(item("warm"), self.scale, row, self.column, self.device, warming=True)

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
        if self.warming:
            return {**dotted(self.protocol.warm), **spread, **place}
        own = dotted({"method": self.protocol.methods.get(self.row.method, {})})
        return {**own, **self.item.settings, **longer, **self.row.settings, **spread, **place}

    @cached_property
    def config(self) -> Config:
        return _config(*self._recipe)

    @cached_property
    def _recipe(self) -> tuple[str, str, str]:
        """Preset, method and settings as JSON."""
        settings = merge(self.protocol.settings, nested(self.settings))
        return self.protocol.preset, self.row.method, json.dumps(settings)

    def job(self, seed: int, folder: Path, root: Path | None = None, known: Known | None = None) -> Job:
        """The run of a seed. ``known`` are results of runs that may not be in the folder.

        Where the run it starts from is neither there nor known, the job has a name that no run has: its start
        has to be made first.
        """
        weights: tuple[str, str] | None = None
        if self.start:
            weights = _weights(self.start.job(seed, folder, root, known), known or Known())
        number = seed + WARM_SEEDS * self.warming
        config = _seeded(self._recipe, number, seed if self.protocol.own_split else None, weights)
        own = [f"{key.rpartition('.')[2]} {value}" for key, value in self.row.settings.items()]
        labels = [f"labels {self.ratio:g}"] if self.ratio != 0.1 else []
        method = "common start" if self.warming else self.config.method.name
        words = [method, self.config.data.name, f"alpha {self.column.alpha:g}"]
        name = " · ".join([*words, *labels, *own, f"seed {seed}"])
        recorded = known is not None and known.find(config) is not None
        return Job(name, config, folder / default_name(config), root, recorded)


def _weights(start: Job, known: Known) -> tuple[str, str]:
    """The last weights of a run to start from: where they are, and their hash."""
    digest = UNKNOWN
    if found := known.find(start.config):
        digest = found.final_hash
    elif start.finished:
        digest = weights_hash(start.path) or UNKNOWN
    return str((kept_start(start, known) or start.path).resolve()), digest


def kept_start(start: Job, known: Known) -> Path | None:
    """The file that came with exported results for runs to start from, if there is one.

    Another kind of processor rounds otherwise, so a start that is made again may be another one.
    """
    found = known.find(start.config)
    file = known.starts / f"{found.final_hash}.safetensors" if found and known.starts else None
    return file if file and file.is_file() else None


@cache
def weights_hash(run: Path) -> str:
    """The hash of a finished run's last weights; empty where they are lost."""
    try:
        return content_hash(read_verified(run / "models" / "last.safetensors")[0])
    except (OSError, RunError):
        return ""


@cache
def _config(preset: str, method: str, settings: str) -> Config:
    return load_config(preset, json.loads(settings), method)


@cache
def _seeded(
    recipe: tuple[str, str, str], seed: int, split: int | None, weights: tuple[str, str] | None
) -> Config:
    """The config of a run. Items share runs and runs share starts: each has one object, so that its identity,
    which is kept with it, is computed once.
    """
    config = dataclasses.replace(_config(*recipe), seed=seed)
    if split is not None:
        labels = dataclasses.replace(config.labels, seed=split)
        partition = dataclasses.replace(config.partition, seed=split)
        config = dataclasses.replace(config, labels=labels, partition=partition)
    if weights is not None:
        model = dataclasses.replace(config.model, weights=weights[0], weights_hash=weights[1])
        config = dataclasses.replace(config, model=model)
    return config


def columns(item: Item, size: Scale, only: Choice | None = None) -> list[Column]:
    """The columns of an item that are asked for; data sets that the paper lacks have to be named.

    An item of a single data set is made on the one that the scale has for such, if it has one, unless its own
    is named.
    """
    only = only or {}
    own = [Column(_stand_in(item, size) or column.data, column.alpha) for column in item.columns]
    alphas = dict.fromkeys(column.alpha for column in own)
    named = [*(column.data for column in item.columns), *size.extra]
    more = [Column(data, alpha) for data in named for alpha in alphas if data in only.get("data", ())]
    return [
        column
        for column in dict.fromkeys((*own, *more))
        if column.data in size.protocols
        and column.data in only.get("data", [column.data])
        and f"{column.alpha:g}" in only.get("alpha", [f"{column.alpha:g}"])
    ]


def _stand_in(item: Item, size: Scale) -> str:
    names = {column.data for column in item.columns}
    return size.stand_in if len(names) == 1 and names <= DATA.keys() else ""


def cases(item: Item, size: Scale, only: Choice | None = None, device: str = "cpu") -> list[Case]:
    """The cases of an item that are asked for: each of its rows in each column, as far as it is chosen."""
    only = only or {}
    return [
        Case(item, size, row, column, device, warming=item.name == "warm")
        for column in columns(item, size, only)
        for row in item.rows
        if not (item.name == "warm" or item.scratch) or size.protocols[column.data].warm
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


def jobs(
    wanted: Iterable[Case],
    seeds: Iterable[int],
    folder: Path,
    root: Path | None = None,
    known: Known | None = None,
) -> list[Job]:
    """Each run once, however many cases need it."""
    seeds = list(seeds)
    found = (case.job(seed, folder, root, known) for seed in seeds for case in wanted)
    return list({job.path: job for job in found}.values())


def starts(
    wanted: Iterable[Case], missing: Iterable[Job], folder: Path, root: Path | None, known: Known
) -> list[Job]:
    """The runs that missing ones start from and whose weights are not here: a record is not enough."""
    cases = {case.start.column.key: case.start for case in wanted if case.start}
    seeds = dict.fromkeys(job.config.seed for job in missing)
    return [job for job in jobs(cases.values(), seeds, folder, root) if not kept_start(job, known)]


def data_of(case: Case) -> str:
    """The data set that a case is run on, which at small scales is not that of its column."""
    return case.config.data.name


def column_title(data: str, size: Scale) -> str:
    """A data set as a heading, with what it stands for at this scale."""
    preset = size.protocols[data].preset
    return TITLES[data] if preset == data else f"{TITLES[data]} (here {preset})"
