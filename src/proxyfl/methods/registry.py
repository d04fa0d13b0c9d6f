"""Methods by name: recipes, aliases and the grammar ``parent+addon``.

A recipe is a method class, the add-ons it carries and defaults of its own. ``sage+proxyfl`` attaches the
add-ons of ProxyFL to another parent; every add-on either takes effect or is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxyfl.core.config import read_section
from proxyfl.core.errors import ConfigError, MethodError, nearest
from proxyfl.core.trees import Tree, dotted, merge
from proxyfl.methods.base import Addon, Method


@dataclass(frozen=True)
class Recipe:
    """A method by name. ``defaults`` go over the classes' own, ``paper`` over those in that fidelity."""

    name: str
    summary: str
    method: type[Method]
    addons: tuple[str, ...] = ()
    defaults: Tree = field(default_factory=dict)
    paper: Tree = field(default_factory=dict)

    def defaults_for(self, fidelity: str) -> Tree:
        return merge(self.defaults, self.paper) if fidelity == "paper" else self.defaults


_recipes: dict[str, Recipe] = {}
_aliases: dict[str, str] = {}
_addons: dict[str, type[Addon]] = {}
_origins: dict[str, str] = {}
OBJECT = "object:"
"""How the name of something begins that is not registered: only the program that made it has it."""

BUNDLES: dict[str, tuple[str, ...]] = {"proxyfl": ("icpl", "gpt")}
"""Add-on names that stand for several."""


def register(recipe: Recipe, *, aliases: Iterable[str] = ()) -> Recipe:
    """Make a method known by name. Registering another one under a taken name is an error."""
    for name in (recipe.name, *aliases):
        if name in _recipes or name in _aliases:
            raise MethodError(f"the method name '{name}' is taken")
    _recipes[recipe.name] = recipe
    _origins[recipe.name] = sys._getframe(1).f_globals.get("__name__", "")
    _aliases.update(dict.fromkeys(aliases, recipe.name))
    return recipe


def register_addon(addon: type[Addon]) -> type[Addon]:
    if addon.name in _addons:
        raise MethodError(f"the add-on name '{addon.name}' is taken")
    _addons[addon.name] = addon
    return addon


def origin(name: str) -> str:
    """The module that registered the method, or the parent of a composition."""
    return _origins.get(_split(_aliases.get(name, name))[0].name, "")


def recipes() -> list[Recipe]:
    """All registered methods, in order of registration."""
    return list(_recipes.values())


def aliases_of(name: str) -> list[str]:
    return [alias for alias, target in _aliases.items() if target == name]


def addons() -> dict[str, type[Addon]]:
    return dict(_addons)


def find(name: str) -> Recipe:
    """The recipe for a name, an alias, or ``parent+addon+addon``."""
    name = _aliases.get(name, name)
    if name in _recipes:
        return _recipes[name]
    parent, extra = _split(name)
    words, wanted = [parent.name], [*parent.addons]
    for word in extra:
        added = [addon for addon in BUNDLES.get(word, (word,)) if addon not in wanted]
        for addon in added:
            if addon not in _addons:
                known = [*_addons, *BUNDLES]
                raise ConfigError(f"unknown add-on '+{addon}' in '{name}'; {nearest(addon, known)}")
        words += [word] if added else []
        wanted += added
    composed = dataclasses.replace(parent, name="+".join(words), addons=tuple(wanted))
    return next((known for known in (parent, *_recipes.values()) if _same(known, composed)), composed)


def _same(known: Recipe, composed: Recipe) -> bool:
    """Whether two recipes train alike: the same method, add-ons and defaults, whatever their names."""
    if (known.method, known.defaults, known.paper) != (composed.method, composed.defaults, composed.paper):
        return False
    return set(_with_needs(known.addons)) == set(_with_needs(composed.addons))


def _split(name: str) -> tuple[Recipe, list[str]]:
    """The longest known method that ``name`` begins with (some have a plus of their own), and the rest."""
    words = name.split("+")
    for count in range(len(words), 0, -1):
        parent = "+".join(words[:count])
        parent = _aliases.get(parent, parent)
        if parent in _recipes:
            return _recipes[parent], words[count:]
    raise ConfigError(f"unknown method '{name}'; {nearest(words[0], [*_recipes, *_aliases])}")


def _with_needs(names: Iterable[str]) -> list[str]:
    ordered: list[str] = []
    for name in names:
        for needed in (*(addon.name for addon in _addons[name].needs), name):
            if needed not in ordered:
                ordered.append(needed)
    return ordered


def resolve(
    name: str,
    parameters: Mapping[str, Any],
    fidelity: str = "clean",
    *,
    lenient: Mapping[str, Any] | None = None,
) -> tuple[str, Tree]:
    """The canonical name and every parameter with its value, checked.

    ``lenient`` holds a preset's suggestions; those that this method has no parameter for are left out.
    """
    recipe = find(name)
    attached = _with_needs(recipe.addons)
    suggested = {
        key: value
        for key, value in (lenient or {}).items()
        if key in attached or (not isinstance(value, Mapping) and _has(recipe.method.Parameters, key))
    }
    table = merge(recipe.defaults_for(fidelity), suggested, parameters)
    tables = {addon: table.pop(addon, {}) for addon in attached}
    for key, value in table.items():
        if isinstance(value, Mapping):
            known = [*attached] or ["none"]
            raise ConfigError(f"'{recipe.name}' has no add-on '{key}'; attached: {', '.join(known)}")
    own = read_section(recipe.method.Parameters, table, fidelity, "method.")
    tree: Tree = dataclasses.asdict(own)
    for addon in attached:
        if not isinstance(tables[addon], Mapping):
            raise ConfigError(f"'method.{addon}' is a table of settings, not {tables[addon]!r}")
        section = read_section(_addons[addon].Parameters, tables[addon], fidelity, f"method.{addon}.")
        tree[addon] = dataclasses.asdict(section)
    return recipe.name, tree


def create(name: str, parameters: Mapping[str, Any] | None = None, fidelity: str = "clean") -> Method:
    """A method ready to train."""
    recipe = find(name)
    _, tree = resolve(name, parameters or {}, fidelity)
    attached, asked = [], _asked(name)
    for addon in _with_needs(recipe.addons):
        cls = _addons[addon]
        section = read_section(cls.Parameters, tree.pop(addon), fidelity, f"method.{addon}.")
        attached.append(cls(section))
        attached[-1].asked_as = asked.get(addon, addon)
    return recipe.method(read_section(recipe.method.Parameters, tree, fidelity, "method."), attached)


def described(method: Method) -> tuple[str, Tree]:
    """The name and parameters by which :func:`create` gives such a method again. The name begins with
    ``object:`` where its class or an add-on's is not registered.
    """
    tree: Tree = dataclasses.asdict(method.parameters)
    tree |= {addon.name: dataclasses.asdict(addon.parameters) for addon in method.addons}
    names = [addon.name for addon in method.addons]
    fitting = [
        recipe
        for recipe in _recipes.values()
        if recipe.method is type(method)
        and set(_with_needs(recipe.addons)) <= set(names)
        and merge(tree, recipe.defaults) == tree
    ]
    if not fitting or any(_addons.get(addon.name) is not type(addon) for addon in method.addons):
        return f"{OBJECT}{'+'.join([method.name, *names])}", tree
    parent = max(fitting, key=lambda recipe: (len(recipe.addons), len(dotted(recipe.defaults))))
    extra = [name for name in names if name not in _with_needs(parent.addons)]
    needed = {addon.name for name in extra for addon in _addons[name].needs}
    return find("+".join([parent.name, *(name for name in extra if name not in needed)])).name, tree


def _asked(name: str) -> dict[str, str]:
    """By which word of a name each add-on came: a bundle's or another add-on's, or its own."""
    asked: dict[str, str] = {}
    for word in _split(_aliases.get(name, name))[1]:
        for addon in _with_needs(BUNDLES.get(word, (word,))):
            asked.setdefault(addon, word)
    return asked


def _has(parameters: type[Any], key: str) -> bool:
    return any(spec.name == key for spec in dataclasses.fields(parameters))
