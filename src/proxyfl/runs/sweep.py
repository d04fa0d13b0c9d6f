"""A grid of experiments: methods × data × seeds × any setting, as a TOML file or a command line says it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.trees import Tree, dotted, merge, nested
from proxyfl.methods import registry
from proxyfl.methods.base import MethodParameters
from proxyfl.runs.batch import Job
from proxyfl.runs.config_file import load_toml
from proxyfl.runs.experiment import load_config
from proxyfl.runs.protocols import SHARED
from proxyfl.runs.settings import default_name
from proxyfl.runs.short_names import COMMON

KEYS = ("data", "methods", "seeds", "vary", "set")

_METHODS = 'name methods first: \'proxyfl compare A,B\', or methods = ["A", "B"] in a grid file'
_DATA = 'use --data A,B, or data = ["A", "B"] in a grid file'
OWN_PLACE = {
    "seed": "use --seeds 1,2, or seeds = [1, 2] in a grid file",
    "method": _METHODS,
    "method.name": _METHODS,
    "data": _DATA,
    "preset": _DATA,
}
"""What a grid has a place of its own for, which would win over the same among the settings."""


@dataclass(frozen=True)
class Grid:
    """What to run. ``vary`` gives each setting its values; ``common`` holds for every run."""

    methods: tuple[str, ...]
    data: tuple[str, ...] = ("digits",)
    seeds: tuple[int, ...] = (1,)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    common: Tree = field(default_factory=dict)
    protocol: str = SHARED

    def __len__(self) -> int:
        combinations = [len(values) for values in self.vary.values()]
        total = len(self.methods) * len(self.data) * len(self.seeds)
        for count in combinations:
            total *= count
        return total


def read_grid(path: Path) -> Grid:
    """A grid from a TOML file; see ``proxyfl sweep --help`` for its form."""
    table = load_toml(path, if_missing="give a grid file; 'proxyfl sweep --help' shows its format")
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown key '{key}'; {nearest(key, KEYS)}")
    if "methods" not in table:
        raise ConfigError(f'{path}: methods is missing; write methods = ["fedavg", "proxyfl"]')
    parts = {part: dotted(_table(table, part)) for part in ("vary", "set")}
    require_distinct((key, f"{part}.{key}") for part, settings in parts.items() for key in settings)
    return Grid(
        methods=_names(table["methods"], "methods"),
        data=_names(table.get("data", "digits"), "data"),
        seeds=_seeds(table.get("seeds", 1)),
        vary={key: _values(key, values) for key, values in parts["vary"].items()},
        common=nested({COMMON.get(key, key): value for key, value in parts["set"].items()}),
    )


def require_distinct(given: Iterable[tuple[str, str]]) -> None:
    """Settings of a grid, each with how it was said: none that has a place of its own, and none twice, also
    not once by its short name; one of the two would be dropped without a word.
    """
    said: dict[str, str] = {}
    for key, how in given:
        if key in OWN_PLACE:
            raise ConfigError(f"{how}: '{key}' cannot be given as a setting; {OWN_PLACE[key]}")
        full = COMMON.get(key, key)
        if full in said:
            raise ConfigError(f"'{full}' is given twice: {said[full]} and {how}; keep one")
        said[full] = how


def jobs_of(grid: Grid, folder: Path, data_root: Path | None = None) -> list[Job]:
    """A job for every point of the grid. A run's folder holds a hash of its settings, so none is made twice;
    points that come to the same settings are one job. A parameter that a method does not have, but another
    of the grid, is not varied for it.
    """
    jobs: dict[Path, Job] = {}
    others_only = _of_others(grid)
    names, choices = list(grid.vary), list(grid.vary.values())
    for data, point, method, seed in itertools.product(
        grid.data, itertools.product(*choices), grid.methods, grid.seeds
    ):
        varied = {COMMON.get(name, name): value for name, value in zip(names, point, strict=True)}
        for foreign in others_only.get(method, ()):
            varied.pop(foreign, None)
        overrides = merge(grid.common, nested(varied), {"seed": seed})
        config = load_config(data, overrides, method, data_root, grid.protocol)
        words = [method, data if len(grid.data) > 1 else ""]
        changed = [
            (name, value)
            for name, value in zip(names, point, strict=True)
            if COMMON.get(name, name) in varied
        ]
        words += [f"{name.rpartition('.')[2]} {value}" for name, value in changed]
        words.append(f"seed {seed}")
        job = Job(" · ".join(filter(None, words)), config, folder / default_name(config), data_root)
        jobs.setdefault(job.path, job)
    return list(jobs.values())


def _of_others(grid: Grid) -> dict[str, list[str]]:
    """By method, the varied parameters that only other methods of the grid have, or make use of."""
    varied = [name for name in grid.vary if name.startswith("method.")]
    used = {method: _used(method) for method in grid.methods if varied}
    return {
        method: [name for name in varied if name not in own and any(name in each for each in used.values())]
        for method, own in used.items()
    }


def _used(method: str) -> set[str]:
    """A method's parameters. One that never looks at an unlabelled image trusts none of its predictions."""
    created = registry.create(method)
    own = set(dotted({"method": registry.resolve(method, {})[1]}))
    if any(view.startswith("u_") for part in created.parts for view in part.wants):
        return own
    return own - {f"method.{spec.name}" for spec in dataclasses.fields(MethodParameters)}


def _table(tree: Tree, key: str) -> Mapping[str, Any]:
    found = tree.get(key, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{key} must be a table; write [{key}] and one setting per line")
    return found


def _names(value: Any, key: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{key} must be a name or a list of names, not {value!r}")
    return tuple(names)


def _seeds(value: Any) -> tuple[int, ...]:
    """A count (seeds 1 to n) or a list."""
    seeds = list(range(1, value + 1)) if type(value) is int else value
    if not isinstance(seeds, list) or not seeds or not all(type(s) is int and s >= 0 for s in seeds):
        raise ConfigError(f"seeds must be a number of seeds or a list like [11, 12, 13], not {value!r}")
    return tuple(dict.fromkeys(seeds))


def _values(key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"vary.{key} must be a list of values, not {values!r}")
    return values
