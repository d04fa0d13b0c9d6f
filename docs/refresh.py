"""Fill the generated parts of the method pages: parameter tables from the code, results from ``results/``.

python docs/refresh.py            rewrite the pages
python docs/refresh.py --check    exit with 1 when a page is out of date
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from proxyfl.core.config import describe
from proxyfl.methods import registry

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results" / "digits-learning.csv"
BLOCK = re.compile(r"<!-- (parameters|results) (.+?) -->\n.*?<!-- /\1 -->", re.DOTALL)


def parameters(name: str) -> str:
    """A table of every parameter of a method and its add-ons."""
    recipe = registry.find(name)
    _, values = registry.resolve(name, {})
    lines = ["| parameter | default | range | meaning |", "|---|---|---|---|"]
    sections: list[tuple[str, type[Any], dict[str, Any]]] = [("", recipe.method.Parameters, values)]
    for addon, cls in registry.addons().items():
        if addon in values:
            sections.append((f"{addon}.", cls.Parameters, values[addon]))
    for prefix, section, chosen in sections:
        for key, _, span, meaning in describe(section):
            span = span.replace("|", "\\|")
            lines.append(f"| `{prefix}{key}` | {_plain(chosen[key])} | {span} | {meaning} |")
    return "\n".join(["## Parameters", "", *lines])


def results(names: str) -> str:
    """Accuracy on digits per method, mean ± std over seeds."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    if RESULTS.exists():
        with RESULTS.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found[row["method"]].append({key: float(row[key]) for key in ("mean_last", "last", "best")})
    lines = ["| method | accuracy, mean of last rounds | last | best | seeds |", "|---|---|---|---|---|"]
    for name in names.split():
        rows = found.get(name)
        if rows:
            cells = [_spread([row[key] for row in rows]) for key in ("mean_last", "last", "best")]
            lines.append(f"| `{name}` | {' | '.join(cells)} | {len(rows)} |")
        else:
            lines.append(f"| `{name}` | not measured yet | | | |")
    return "\n".join(["Preset `digits`, as `python benchmarks/learning.py` measures it:", "", *lines])


def refreshed(text: str) -> str:
    def fill(block: re.Match[str]) -> str:
        kind, names = block[1], block[2]
        body = parameters(names) if kind == "parameters" else results(names)
        return f"<!-- {kind} {names} -->\n{body}\n<!-- /{kind} -->"

    return BLOCK.sub(fill, text)


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def _spread(values: list[float]) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, say what is out of date")
    check = parser.parse_args().check
    stale = []
    for page in sorted((DOCS / "methods").glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(page.name)
            if not check:
                page.write_text(new, encoding="utf-8")
    if stale:
        print(("out of date: " if check else "rewrote: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
