"""``proxyfl methods``: what can be trained, and every parameter of a method."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import command, examples, out, plain_table
from proxyfl.cli.present import as_toml
from proxyfl.core.dealing import require_scenario
from proxyfl.core.settings import FIDELITIES, describe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxyfl.methods.base import Method, Part
    from proxyfl.methods.registry import Recipe

EXAMPLES = examples("proxyfl methods", "proxyfl methods show proxyfl", "proxyfl methods show fedavg+gpt")

app = typer.Typer(invoke_without_command=True)


@app.callback(epilog=EXAMPLES)
def methods(
    ctx: typer.Context,
    scenario: Annotated[
        str,
        typer.Option(help="Only methods defined with labels at clients, server or partial.", metavar="WHERE"),
    ] = "",
) -> None:
    """List the methods: what each sends in addition to the weights, and what clients keep."""
    if ctx.invoked_subcommand is not None:
        return
    if scenario:
        require_scenario(scenario)
    from rich.markup import escape

    from proxyfl.methods import registry

    created = {recipe.name: registry.create(recipe.name) for recipe in registry.recipes(scenario)}
    console = out()
    console.print(_listing(created))
    console.print()
    console.print("[yellow](oracle)[/] receives the true labels of unlabelled images: a bound, not a method")
    addons = ", ".join([*registry.addons(), *registry.BUNDLES])
    console.print(f"add-ons for any method, as in fedavg+gpt: {escape(addons)}")
    table = plain_table("add-on", "sends", keep=("add-on",))
    table.show_header = False
    for name, addon in registry.addons().items():
        if addon.sends:
            table.add_row(f"  +{escape(name)}", f"sends {escape(addon.sends)}")
    console.print(table)
    _tell_refused(scenario, console)
    console.print(f"parameters of one: {command('methods', 'show', 'proxyfl')}")


def _tell_refused(scenario: str, console: Console) -> None:
    """Which methods are not defined in a scenario, and why."""
    from proxyfl.methods import registry

    reasons: dict[str, list[str]] = {}
    for recipe in registry.recipes() if scenario else []:
        found = (part.refusal(scenario) for part in registry.create(recipe.name).parts)
        if reason := next(filter(None, found), ""):
            reasons.setdefault(reason, []).append(recipe.name)
    for reason, names in reasons.items():
        console.print(f"not defined with labels at {scenario}: {', '.join(names)}: {reason}", markup=False)


def _listing(created: dict[str, Method]) -> Table:
    """Every method in its group, with the add-ons it carries."""
    from rich.markup import escape

    from proxyfl.methods import registry

    table = plain_table("name", "what it does", keep=("name",))
    for group, names in _grouped(created).items():
        table.add_row()
        table.add_row(f"[bold]{escape(group)}[/]")
        for name in names:
            summary = escape(registry.find(name).summary.removesuffix(" (oracle)"))
            summary += " [yellow](oracle)[/]" if created[name].oracle else ""
            carried = " ".join(f"+{addon.name}" for addon in created[name].addons)
            summary += f" [dim]({escape(carried)})[/]" if carried else ""
            notes = [f"[dim]{escape(line)}[/]" for line in _notes(name, created[name])]
            table.add_row(f"  [bold]{escape(name)}[/]", "\n".join([summary, *notes]))
    return table


def _notes(name: str, method: Method) -> list[str]:
    """Other names, and what the method itself has sent beside the weights or kept."""
    from proxyfl.methods import registry

    aliases = ", ".join(registry.aliases_of(name))
    lines = {"also": aliases, "sends": method.sends, "clients keep": method.keeps}
    return [f"{verb} {text}" for verb, text in lines.items() if text]


def _grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """The names by group; groups stand by the lowest rank in them, and methods without a group last."""
    from proxyfl.methods import registry

    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(registry.shown(name).group, []).append(name)

    def place(group: str) -> tuple[bool, int]:
        return group == registry.OTHERS, min(registry.shown(name).rank for name in groups[group])

    return {group: groups[group] for group in sorted(groups, key=place)}


@app.command(epilog=examples("proxyfl methods show proxyfl", "proxyfl methods show fedavg+gpt"))
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A method, or parent+addon.", show_default=False)
    ],
) -> None:
    """A method and its add-ons: citation, equations, deviations, and every parameter.

    Each parameter has its default, its value in other fidelities, its range and its meaning.
    """
    from rich.markup import escape
    from rich.padding import Padding

    from proxyfl.methods import registry

    recipe, method = registry.find(name), registry.create(name)
    console = out()
    oracle = " [yellow](oracle)[/]" if method.oracle else ""
    console.print(f"[bold]{escape(recipe.name)}[/]{oracle}: {escape(recipe.summary)}")
    modules = [type(part).__module__ for part in method.parts]
    for place, part in enumerate(method.parts):
        title = "method" if part is method else f"method.{part.name}"
        console.print(f"\n[bold]\\[{title}][/]  [dim]{escape(_facts(part))}[/]")
        about = _about(modules[place]) if modules[place] not in modules[:place] else ""
        if about:
            console.print(Padding(about, (1, 0, 1, 2)), markup=False)
        console.print(_parameters(recipe.name, part, method))
    console.print("\n[dim]code, paper: where that fidelity has another value; presets may set others[/]")
    if method.protocol:
        console.print(f"--protocol own: {_listed(method.protocol)}", markup=False, soft_wrap=True)
        for data, settings in method.protocol_on.items():
            console.print(f"  on {data}: {_listed(settings)}", markup=False, soft_wrap=True)
    console.print(_example(recipe, method), markup=False, soft_wrap=True)


def _listed(settings: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={as_toml(value)}" for key, value in settings.items())


def _about(name: str) -> str:
    """What a part's module says: the citation, the idea, the equations and the deviations."""
    module = sys.modules.get(name)
    text = (inspect.getdoc(module) if module is not None else None) or ""
    paragraphs = text.replace("``", "").replace("::\n", ":\n").split("\n\n")
    return "\n\n".join(part if part.startswith(" ") else " ".join(part.split()) for part in paragraphs)


def _facts(part: Part) -> str:
    parts = [f"sends {part.sends}" if part.sends else "", f"clients keep {part.keeps}" if part.keeps else ""]
    return "; ".join(filter(None, parts))


def _parameters(name: str, part: Part, method: Method) -> Table:
    """One row per parameter, with the values that this recipe has in each fidelity."""
    from rich.markup import escape

    from proxyfl.methods import registry

    trees = {fidelity: registry.resolve(name, {}, fidelity)[1] for fidelity in FIDELITIES}
    values: dict[str, Any] = {
        fidelity: tree if part is method else tree[part.name] for fidelity, tree in trees.items()
    }
    cls = type(part).Parameters
    meanings = {spec.name: spec.metadata.get("meaning", "") for spec in dataclasses.fields(cls)}
    heads = ("parameter", "default", "code", "paper", "range", "meaning")
    table = plain_table(*heads, keep=heads[:4])
    for key, _, span, _ in describe(cls):
        clean = values["clean"][key]
        others = [values[f][key] for f in ("code", "paper")]
        differing = ["" if value == clean else escape(as_toml(value)) for value in others]
        default = f"[cyan]{escape(as_toml(clean))}[/]"
        table.add_row(key, default, *differing, escape(span), escape(meanings[key]))
    if not table.row_count:
        table.add_row("–", "", "", "", "", "nothing to set")
    return table


def _example(recipe: Recipe, method: Method) -> str:
    """A command that sets a parameter of the method, and one of its first add-on."""
    words: list[str] = ["run", "digits", "--method", recipe.name]
    for part in method.parts[:2]:
        where = "method" if part is method else f"method.{part.name}"
        first = next(iter(describe(type(part).Parameters)), None)
        if first is not None:
            words += ["--set", f"{where}.{first[0]}={as_toml(getattr(part.parameters, first[0]))}"]
    return f"example: {command(*words)}"
