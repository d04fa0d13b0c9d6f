"""How settings and results look in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from proxyfl.cli.common import plain_table
from proxyfl.core import kept
from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.text import duration, percent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from proxyfl.core.trees import Tree
    from proxyfl.runs.run import Summary

CHANGED, PRESET = "bold yellow", "cyan"
LEVELS = " ▁▂▃▄▅▆▇█"


def measures_line(found: Mapping[str, float]) -> str:
    """What was measured beside accuracy, in a line."""
    from proxyfl.core.records import MEASURES

    return ", ".join(f"{MEASURES[name].name} {percent(found[name])}" for name in MEASURES if name in found)


def settings_tree(config: Config, title: str, console: Console) -> RenderableType:
    """Every setting by section. What differs from preset or default has a colour; without colours, a sign."""
    from rich.console import Group
    from rich.text import Text
    from rich.tree import Tree

    colours = console.color_system is not None
    defaults, preset = _references(config)
    tree = Tree(Text(title, style="bold"), guide_style="dim")
    top: dict[str, Any] = {}
    for name, value in config.to_tree().items():
        if isinstance(value, Mapping):
            _add_section(tree, name, value, defaults.get(name, {}), preset.get(name, {}), colours)
        else:
            top[name] = value
    usual = {**top, "seed": defaults["seed"], "fidelity": "clean"}
    body = _pairs(top, usual, usual, colours)
    tree.label = Text.assemble(tree.label, "  ", body)  # type: ignore[arg-type]
    return Group(tree, _legend(config, colours))


def _references(config: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """What the settings would be by default, and as the preset has them, with this method and fidelity."""
    words = (config.preset, config.fidelity, config.method.name)
    defaults, preset, known = kept.fact(lambda: _resolved(*words), "references", *words)
    own = {} if known else {"method": config.to_tree()["method"]}  # its parameters are shown as they are
    return defaults | own, preset | own


def _resolved(preset: str, fidelity: str, method: str) -> tuple[Tree, Tree, bool]:
    """Defaults, the preset's values, and whether they have the parameters of the method."""
    from proxyfl.runs.settings import resolve

    bare: dict[str, Any] = {"fidelity": fidelity, "method": {"name": method}}
    known = True
    try:
        defaults = resolve("", bare).to_tree()
    except ProxyFLError:  # the code of the method is not at hand
        del bare["method"]
        known = False
        defaults = resolve("", bare).to_tree()
    try:
        return defaults, resolve(preset, bare).to_tree(), known
    except ProxyFLError:  # the run is older than a change of the preset
        return defaults, defaults, known


def _add_section(
    tree: Any,
    name: str,
    values: Mapping[str, Any],
    defaults: Mapping[str, Any],
    preset: Mapping[str, Any],
    colours: bool,
) -> None:
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    from rich.table import Table

    row = Table.grid(padding=(0, 1))
    row.add_column(width=11, no_wrap=True, style="bold")
    row.add_column()
    row.add_row(name, _pairs(plain, defaults, preset, colours))
    branch = tree.add(row)
    for key, value in values.items():
        if isinstance(value, Mapping):
            _add_section(branch, key, value, defaults.get(key, {}), preset.get(key, {}), colours)


def _pairs(
    values: Mapping[str, Any], defaults: Mapping[str, Any], preset: Mapping[str, Any], colours: bool
) -> Text:
    from rich.text import Text

    line = Text()
    for key, value in values.items():
        style, sign = "", ""
        if value != preset.get(key):
            style, sign = CHANGED, "*"
        elif value != defaults.get(key):
            style, sign = PRESET, "'"
        line.append(f"{key}=", style="dim").append(as_toml(value), style=style)
        line.append(("" if colours else sign) + " ")
    line.rstrip()
    return line


def _legend(config: Config, colours: bool) -> Text:
    from rich.text import Text

    preset = f"preset {config.preset}" if config.preset else "the preset"
    parts = [("changed", CHANGED, "*"), (f"set by {preset}", PRESET, "'"), ("others: defaults", "", "")]
    legend = Text("")
    for words, style, sign in parts:
        legend.append("" if colours or not sign else f"{sign} ").append(words, style=style).append("   ")
    legend.rstrip()
    return legend


def as_toml(value: Any) -> str:
    """A value as a config file would have it, text without its quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_toml, value)) + "]"
    return str(value) if value != "" else '""'


def summary_table(summary: Summary, last_rounds: int) -> Table:
    """A run's result: the mean of the last rounds leads, since the best round is chosen on test data."""
    from proxyfl.core.text import in_words

    used = min(last_rounds, summary.measured)
    mean = "accuracy, mean of last round" if used == 1 else f"accuracy, mean of last {used}"
    mean += " measured" * (summary.measured < summary.rounds and used > 1)
    table = plain_table(mean, "last", f"best (round {summary.best_round})", "rounds", "time", "sent")
    table.add_row(
        f"[bold green]{percent(summary.mean_last)}[/]",
        percent(summary.last),
        percent(summary.best),
        str(summary.rounds),
        duration(summary.seconds),
        in_words(1e6 * summary.megabytes),
    )
    return table


def curve(values: Sequence[float], width: int, height: int = 4) -> list[str]:
    """A curve in block characters, one string per row, from the largest value down to the smallest."""
    columns = list(_thinned(values, width))
    low, high = min(columns), max(columns)
    span = high - low or 1.0
    cells = [1 + round((value - low) / span * (height * 8 - 1)) for value in columns]
    rows = []
    for row in reversed(range(height)):
        rows.append("".join(LEVELS[min(8, max(0, cell - 8 * row))] for cell in cells))
    return rows


def _thinned(values: Sequence[float], width: int) -> Iterable[float]:
    """At most ``width`` values, each the mean of its neighbourhood."""
    count = min(len(values), max(1, width))
    for column in range(count):
        part = values[column * len(values) // count : (column + 1) * len(values) // count]
        yield sum(part) / len(part)
