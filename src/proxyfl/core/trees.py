"""Settings as nested tables, and the same by dotted key: ``{"method": {"tau": 0.9}}`` and ``method.tau``."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from proxyfl.core.errors import ConfigError

Tree = dict[str, Any]

DEEPEST = 10
"""Tables inside each other; no setting is as deep."""


def merge(*layers: Mapping[str, Any]) -> Tree:
    """Nested tables laid over each other; later layers win."""
    result: Tree = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping):
                below = result.get(key)
                result[key] = merge(below if isinstance(below, Mapping) else {}, value)
            else:
                result[key] = value
    return result


def nested(flat: Mapping[str, Any]) -> Tree:
    """``{"method.tau": 0.9}`` as ``{"method": {"tau": 0.9}}``."""
    tree: Tree = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        if len(path) > DEEPEST:
            raise ConfigError(f"'{key}' is not a setting; write it like method.tau")
        if not all((*path, last)):
            raise ConfigError(f"'{key}' is not a setting; write it like method.tau")
        place = tree
        for name in path:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"'{key}' cannot be set below '{name}', which is a value and not a table")
        place[last] = value
    return tree


def table_in(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The table of this name in another; an empty one where there is none, or something else."""
    found = tree.get(name)
    return found if isinstance(found, Mapping) else {}


def dotted(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Back from :func:`nested`, in order."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat


def parse_assignment(text: str) -> Tree:
    """``method.tau=0.9`` as nested tables. The value is TOML; bare words are text."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"'{text}' is not a setting; write it like method.tau=0.9")
    try:
        value = tomllib.loads(f"value = {raw.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the value of '{key.strip()}' cannot be read: {error}") from None
    return nested({key.strip(): value})


def table_of(section: Any) -> Tree:
    """A dataclass of settings as nested tables."""
    kind: Any = type(section)
    return {name: plain(getattr(section, name)) for name in _field_names(kind)}


@cache
def _field_names(section: Any) -> tuple[str, ...]:
    return tuple(spec.name for spec in dataclasses.fields(section))


def plain(value: Any) -> Any:
    """As TOML holds it: tables and lists, no tuples."""
    if isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(value):
        return table_of(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, tuple | list) else value
