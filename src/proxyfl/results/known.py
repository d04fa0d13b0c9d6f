"""What tables need to know of methods: other names, the place among the rows, whether one is a bound."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from proxyfl.core import kept
from proxyfl.core.errors import ProxyFLError

Fact = tuple[list[str], int, bool, bool]
"""The fields of :class:`Known`, as JSON holds them."""


@dataclass(frozen=True)
class Known:
    """``names`` are a method's own and those that stand for it. Rows are sorted by ``rank``; that of
    ``parent+addon`` is its parent's, after which it comes (``after``). An ``oracle`` sees labels that a
    method may not: a bound, which is not ranked.
    """

    names: list[str]
    rank: int
    after: bool
    oracle: bool


def about(methods: Iterable[str]) -> dict[str, Known]:
    """Methods by name, all that are needed at once: the first time this imports them, and torch with them.
    What was found is kept.
    """
    asked = set(methods)
    file = kept.place("methods in tables")
    found: dict[str, Fact] = json.loads((kept.read(file) if file else "") or "{}")
    if not asked <= found.keys():
        found |= _facts(asked)
        if file:
            kept.keep(file, json.dumps(found))
    return {name: Known(*found[name]) for name in asked}


def _facts(asked: Iterable[str]) -> dict[str, Fact]:
    """Of all registered methods, whichever the next table has, and of those asked for."""
    from proxyfl.methods import registry

    registered = [recipe.name for recipe in registry.recipes()]
    aliases = [alias for name in registered for alias in registry.aliases_of(name)]
    return {name: _fact(name) for name in [*registered, *aliases, *asked]}


def _fact(name: str) -> Fact:
    from proxyfl.methods import registry

    parent = name.partition("+")[0]
    if registry.shown(name).rank < registry.LAST:
        parent = name
    names, oracle = [name], False
    try:
        recipe = registry.find(name)
        names, oracle = [name, recipe.name, *registry.aliases_of(recipe.name)], recipe.method.oracle
    except ProxyFLError:  # a method of user code that is not at hand
        pass
    return list(dict.fromkeys(names)), registry.shown(parent).rank, name != parent, oracle
