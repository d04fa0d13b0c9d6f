"""Whose protocol: that of the preset, which all methods share, or the one of the method's own paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.trees import Tree, dotted, nested, table_in
from proxyfl.methods import registry

SHARED, OWN = "shared", "own"
PROTOCOLS = (SHARED, OWN)


def own_settings(method: str, data: str) -> dict[str, object]:
    """Those of the method's own paper for this data set, by dotted name; empty where it has none."""
    found = registry.find(method).method
    return {**found.protocol, **found.protocol_on.get(data, {})}


def protocol_layer(protocol: str, method: str, data: str) -> Tree:
    """The settings that a protocol puts over those of the preset, as nested tables."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol '{protocol}'; {nearest(protocol, PROTOCOLS)}")
    if protocol == SHARED:
        return {}
    settings = own_settings(method, data)
    if not settings:
        known = [recipe.name for recipe in registry.recipes() if recipe.method.protocol]
        raise ConfigError(
            f"{method} has no protocol of its own: no settings of its paper are known "
            f"for a federation; use the protocol 'shared', or one of {', '.join(known)}"
        )
    return nested(settings)


def summary(config: Config) -> str:
    """Which of the method's own settings a config has, and which not."""
    own = own_settings(config.method.name, config.data.name)
    now = dotted(config.to_tree())
    kept = [f"{key}={_said(value)}" for key, value in own.items() if now[key] == value]
    changed = [f"{key}={_said(now[key])} (its own: {_said(own[key])})" for key in own if now[key] != own[key]]
    line = f"protocol: {config.method.name}'s own, {', '.join(kept)}"
    return f"{line}; changed: {', '.join(changed)}" if changed else line


def named(section: str, *tables: Mapping[str, Any]) -> str:
    """The method or data set that the last of the tables with a name in this section asks for; empty where
    none does.
    """
    found = ""
    for table in tables:
        name = table_in(table, section).get("name")
        found = name if isinstance(name, str) and name else found
    return found


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
