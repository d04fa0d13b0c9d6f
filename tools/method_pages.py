"""The generated parts of the method pages: tables of parameters from the code, of results from a file.

python tools/method_pages.py PAGE.md     fill those of one page
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import scenario_tables
from proxyfl.aggregation.coverage import own_weights, uncovered
from proxyfl.core.dealing import CLIENTS, SCENARIOS
from proxyfl.core.settings import describe
from proxyfl.federation.records import unsupported
from proxyfl.methods import registry

BLOCK = re.compile(r"<!-- (parameters|results|csv|coverage|scenarios) (.+?) -->\n.*?<!-- /\1 -->", re.DOTALL)
MEASURED = ("mean_last", "last", "best")
RESULTS = Path(__file__).parents[1] / "results" / "digits-learning.csv"


def block(kind: str, names: str, body: str) -> str:
    """A generated part between the marks by which it is found again."""
    return f"<!-- {kind} {names} -->\n{body}\n<!-- /{kind} -->"


def refreshed(text: str, measured: Path) -> str:
    """A page with its generated parts as code and results have them now."""

    def fill(found: re.Match[str]) -> str:
        kind, names = found[1], found[2]
        if kind == "csv":
            return block(kind, names, csv_table(measured.with_name(names)))
        if kind == "coverage":
            return block(kind, names, coverage(names))
        if kind == "scenarios":
            where, *of = names.split()
            if where == "methods":
                return block(kind, names, scenario_tables.methods(measured))
            return block(kind, names, scenario_tables.measured(where, measured, *of))
        return block(kind, names, parameters(names) if kind == "parameters" else results(names, measured))

    return BLOCK.sub(fill, text)


def csv_table(path: Path) -> str:
    """A file of results as it is, its numbers to the right."""
    if not path.exists():
        return "Not measured yet."
    with path.open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    right = [all(_is_number(row[column]) for row in rows) for column in range(len(head))]
    marks = ["---:" if number else "---" for number in right]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, marks, *rows])


def coverage(what: str) -> str:
    """What methods' hooks allow: ``privacy`` covers them, or ``rules`` against hostile clients do.

    ``what`` is one of the two and the names of methods.
    """
    what, *names = what.split()
    heads = {"privacy": ["of whole clients", "of single images"], "rules": ["median, trimmed, krum"]}
    head = ["method", *heads[what], "why not"]
    rows = []
    for name in names:
        method = registry.create(name)
        found = [uncovered(method), unsupported(method)] if what == "privacy" else [own_weights(method)]
        words = [
            f"`{name}`",
            *("no" if reason else "yes" for reason in found),
            "; ".join(filter(None, found)),
        ]
        rows.append(words)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parameters(name: str) -> str:
    """A table of every parameter of a method and its add-ons."""
    recipe = registry.find(name)
    _, values = registry.resolve(name, {})
    rows = _rows(recipe.method.Parameters, values, "")
    for addon, cls in registry.addons().items():
        if addon in values:
            rows += _rows(cls.Parameters, values[addon], f"{addon}.")
    head = ["| parameter | default | range | meaning |", "|---|---|---|---|"]
    return "\n".join(["## Parameters", "", *head, *rows])


def _row(name: str, value: Any, span: str, meaning: str) -> str:
    plain = str(value).lower() if isinstance(value, bool) else f"{value}"
    return f"| `{name}` | {plain} | {span.replace('|', chr(92) + '|')} | {meaning} |"


def results(names: str, measured: Path) -> str:
    """Accuracy on digits per method, mean ± std over seeds.

    ``names`` are parted by blanks; one may have settings behind it, in parentheses.
    """
    found = _by_method(measured)
    lines = ["| method | accuracy, mean of last rounds | last | best | seeds |", "|---|---|---|---|---|"]
    for name in re.findall(r"[^\s()]+(?: \([^)]*\))?", names):
        method, _, settings = name.partition(" ")
        shown, rows = f"`{method}` {settings}".strip(), found.get(name)
        if rows:
            cells = [scenario_tables.spread([row[key] for row in rows]) for key in MEASURED]
            lines.append(f"| {shown} | {' | '.join(cells)} | {len(rows)} |")
        else:
            lines.append(f"| {shown} | not measured yet | | | |")
    return "\n".join(["Preset `digits`, measured by `python benchmarks/learning.py`:", "", *lines])


def _by_method(measured: Path) -> dict[str, list[dict[str, float]]]:
    """The rows of each method: below its name alone those of the first scenario it was measured in, with a
    scenario behind it in parentheses those of that one.
    """
    found: dict[str, list[dict[str, float]]] = {}
    for where in SCENARIOS:
        file = measured if where == CLIENTS else measured.with_name(scenario_tables.OTHERS)
        for method, by_dtype in scenario_tables.read_results(file, where).items():
            rows = list(scenario_tables.most_seeds(by_dtype)[1].values())
            found[f"{method} ({where})"] = rows
            found.setdefault(method, rows)
    return found


def _rows(section: type[Any], chosen: dict[str, Any], prefix: str) -> list[str]:
    return [_row(f"{prefix}{key}", chosen[key], span, meaning) for key, _, span, meaning in describe(section)]


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(refreshed(page.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
