"""Methods by name: recipes, aliases and the grammar ``parent+addon``.

A recipe is a method class, the add-ons it carries and defaults of its own. ``sage+proxyfl`` attaches the
add-ons of ProxyFL to another parent; every add-on either takes effect or is refused with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, MethodError, nearest
from proxyfl.core.settings import OBJECT, read_section
from proxyfl.core.trees import Tree, dotted, merge
from proxyfl.methods.base import Addon, Method

Colour = Literal["black", "sky", "blue", "green", "orange", "purple", "vermillion"]
Line = Literal["solid", "dashed", "dotted", "dash-dot", "dash-dot-dot", "long-dash"]
MARKERS = "o^vs<>pXDPhd*"
OTHERS, LAST = "others", 1000
"""Group and rank of a method that names none."""


@dataclass(frozen=True)
class Shown:
    """How a method is presented.

    ``group`` is its heading in listings and ``rank`` its place in tables, plain methods first; groups are
    sorted by their lowest rank. ``colour``, ``line`` and ``marker`` (matplotlib's letters) are for figures;
    without a colour, a style is chosen that no other method uses. ``page`` is its page in docs/methods;
    empty: the page has the method's name.

    >>> import proxyfl
    >>> proxyfl.Shown(group="mine", colour="purple", marker="s").rank == proxyfl.Shown().rank
    True
    """

    group: str = OTHERS
    rank: int = LAST
    colour: Colour | None = None
    line: Line = "solid"
    marker: str = "o"
    bold: bool = False
    page: str = ""

    def __post_init__(self) -> None:
        known = {"colour": (None, *get_args(Colour)), "line": get_args(Line), "marker": tuple(MARKERS)}
        for key, words in known.items():
            if (word := getattr(self, key)) not in words:
                hint = nearest(str(word), filter(None, words))
                raise MethodError(f"'{word}' is not a {key} for pictures; {hint}")


UNSHOWN = Shown()


@dataclass(frozen=True)
class Recipe:
    """A method by name. ``defaults`` replace those of its classes, ``paper`` those of that fidelity.

    >>> import proxyfl
    >>> from proxyfl.methods import FixMatch
    >>> proxyfl.Recipe("bold", "FixMatch that trusts everything", FixMatch, defaults={"tau": 0.0}).name
    'bold'
    """

    name: str
    summary: str
    method: type[Method]
    addons: tuple[str, ...] = ()
    defaults: Tree = field(default_factory=dict)
    paper: Tree = field(default_factory=dict)

    def defaults_for(self, fidelity: str) -> Tree:
        return merge(self.defaults, self.paper) if fidelity == "paper" else self.defaults


_recipes: dict[str, Recipe] = {}
_shown: dict[str, Shown] = {}
_aliases: dict[str, str] = {}
_addons: dict[str, type[Addon]] = {}
BUNDLES: dict[str, tuple[str, ...]] = {"proxyfl": ("icpl", "gpt")}
"""Add-on names that stand for several."""


R = TypeVar("R", Recipe, type[Method])


def register(method: R, shown: Shown = UNSHOWN, *, aliases: Iterable[str] = ()) -> R:
    """Register a method by name, with ``aliases``; a name that is taken is an error.

    A method class is registered under its ``name``, with the first line of its docstring as summary
    (``@register_method`` above the class is enough); a :class:`Recipe` can have add-ons and other defaults.

    Example, as a file: FixMatch with a threshold that rises over the rounds::

        from proxyfl import Recipe, register_method
        from proxyfl.methods.fixmatch import FixMatch

        class RisingMatch(FixMatch):
            name = "risingmatch"

            def pseudo_label(self, outputs, ctx):
                pseudo = super().pseudo_label(outputs, ctx)
                threshold = self.parameters.tau * ctx.task.round / ctx.rounds
                pseudo.mask = outputs.local_weak.amax(1) >= threshold
                return pseudo

        register_method(Recipe("risingmatch", "FixMatch with a rising threshold", RisingMatch))

    ``proxyfl --plugin FILE run --method risingmatch`` trains it, and every add-on can be attached to it.
    """
    recipe = _recipe_of(method)
    for name in (recipe.name, *aliases):
        if name in _recipes or name in _aliases:
            raise MethodError(f"the method name '{name}' is taken")
    _recipes[recipe.name], _shown[recipe.name] = recipe, shown
    _aliases.update(dict.fromkeys(aliases, recipe.name))
    return method


def _recipe_of(method: object) -> Recipe:
    if isinstance(method, Recipe):
        return method
    if isinstance(method, type) and issubclass(method, Method) and method.name != Method.name:
        return Recipe(method.name, (method.__doc__ or method.__name__).strip().splitlines()[0], method)
    raise MethodError(
        'register_method takes a class of methods that has a name, as in name = "mine", or a recipe: '
        'register_method(Recipe("mine", "what it does", Mine))'
    )


def register_addon(addon: type[Addon]) -> type[Addon]:
    """Register an add-on under its class's ``name``; a decorator.

    Label smoothing for any method, as a file of its own::

        from dataclasses import dataclass

        from proxyfl import Addon, register_addon
        from proxyfl.core.settings import setting

        @dataclass(frozen=True)
        class SmoothParameters:
            weight: float = setting(0.1, "strength; 0 is no smoothing", low=0)

        @register_addon
        class Smooth(Addon):
            name = "smooth"
            Parameters = SmoothParameters

            def term(self, outputs, ctx):
                return -self.parameters.weight * outputs.x.log_softmax(1).mean()

    ``proxyfl --plugin FILE run --method fedavg+smooth --set method.smooth.weight=0.2`` trains with it.
    """
    if not addon.name or "+" in addon.name:
        raise MethodError(f"an add-on cannot be called '{addon.name}': set name, as in name = \"smooth\"")
    if addon.name in _addons:
        raise MethodError(f"the add-on name '{addon.name}' is taken")
    _addons[addon.name] = addon
    return addon


def recipes(where: str = "") -> list[Recipe]:
    """All registered methods, in order of registration; those that are defined in a scenario."""
    found = list(_recipes.values())
    return [each for each in found if not where or defined(create(each.name), where)]


def defined(method: Method, where: str) -> bool:
    """Whether a method and all its add-ons make sense in a scenario."""
    return not any(part.refusal(where) for part in method.parts)


def shown(name: str) -> Shown:
    """How a registered method is presented; for any other name what a method has that says nothing."""
    return _shown[name] if name in _recipes and name in _shown else UNSHOWN


def aliases_of(name: str) -> list[str]:
    return [alias for alias, target in _aliases.items() if target == name]


def addons() -> dict[str, type[Addon]]:
    """All registered add-ons by name, whichever file was imported first."""
    return dict(sorted(_addons.items()))


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
        if key in attached
        or (not isinstance(value, Mapping) and key in recipe.method.Parameters.__dataclass_fields__)
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


def method_of(config: Config) -> Method:
    """The method that a config names, with its parameters."""
    return create(config.method.name, config.method.parameters, config.fidelity)


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
