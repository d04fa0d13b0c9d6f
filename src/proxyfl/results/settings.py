"""Settings of runs by dotted key: flat, sortable, and as people read them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.trees import dotted

METHOD, DATA = "method.name", "data.name"
FIRST = (DATA, "labels.ratio", "partition.alpha", "fidelity")
"""Settings that tell runs apart before others do."""

Settings = Mapping[str, Any]
"""Every setting of a run by its dotted key."""

Distinction = tuple[tuple[str, Any], ...]
"""The settings by which a run differs from others."""

BESIDE = re.compile(r"keep\..*|preset|seed|compute\.device")
"""Those by which runs are not distinguished."""


def distinguished_by(settings: Settings) -> Distinction:
    """The same for runs that differ in nothing but the seed, where they were computed and what they keep."""
    return tuple(sorted(pair for pair in settings.items() if not BESIDE.fullmatch(pair[0])))


def settings_of(config: Config) -> dict[str, Any]:
    """Every setting by its dotted key, in order; lists become tuples."""
    return {key: hashable(value) for key, value in dotted(config.to_tree()).items()}


def changed(own: Settings) -> str:
    """Settings that are not the preset's for that method, as JSON: with the preset they make the run.

    Where weights to start from lay is left out: their hash says what they were.
    """
    from proxyfl.runs.settings import resolve

    try:
        usual = settings_of(resolve(own["preset"], {"method": {"name": own[METHOD]}}))
    except ProxyFLError:  # a method that this program does not know
        usual = {}
    usual["model.weights"] = own.get("model.weights")
    return json.dumps({key: value for key, value in own.items() if key not in usual or usual[key] != value})


def telling(
    keys: Iterable[str], tables: Sequence[Settings], always: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Keys that are needed to tell runs apart, and keys whose values those before them settle."""
    needed: list[str] = []
    settled: list[str] = []
    groups = 1
    for key in keys:
        more = len({tuple(table.get(each) for each in (*needed, key)) for table in tables})
        if more > groups or key in always:
            needed.append(key)
            groups = more
        else:
            settled.append(key)
    return needed, settled


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Keys without their section where that says enough and no two become the same."""
    short = {key: _short(key) for key in keys}
    words = list(short.values())
    return {key: word if words.count(word) == 1 else key for key, word in short.items()}


def _short(key: str) -> str:
    section, _, last = key.rpartition(".")
    if key.startswith("method."):
        return key.removeprefix("method.")
    if key == "labels.ratio":
        return "label ratio"
    return {"name": section, "seed": key}.get(last, last)


def plain(value: Any) -> str:
    """A setting's value as it is printed."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return "[" + ",".join(map(plain, value)) + "]" if isinstance(value, tuple) else str(value)


def order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, before words."""
    number = isinstance(value, int | float)
    return (not number, value if number else 0.0, "" if number else str(value))


def hashable(value: Any) -> Any:
    """A value with its lists as tuples."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value
