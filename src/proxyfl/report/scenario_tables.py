"""The generated parts of the page about scenarios: which method is defined where, what it sends, results."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from pathlib import Path

from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS, SERVER
from proxyfl.methods import registry
from proxyfl.methods.base import Method
from proxyfl.results.paired import Difference, holm, paired_difference, warning

LOWER = {CLIENTS: "fedavg", SERVER: "server-only", PARTIAL: "fedavg"}
"""What a method must beat for its unlabelled images to have been of use."""

OTHERS = "scenarios.csv"
"""The file of results with labels at the server or at some clients."""

By = dict[str, dict[int, dict[str, float]]]


def methods() -> str:
    """Every method that has a group in listings: the scenarios in which it is defined, and what travels
    beside weights. A plug-in, or a method that is being written, has none.
    """
    lines = [f"| method | {' | '.join(SCENARIOS)} | sent beside the weights |", "|---|:-:|:-:|:-:|---|"]
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for recipe in registry.recipes():
        if registry.shown(recipe.name).group == registry.OTHERS:
            continue
        method = registry.create(recipe.name)
        cells = []
        for where in SCENARIOS:
            reason = next(filter(None, (part.refusal(where) for part in method.parts)), "")
            cells.append("–" if reason else "yes")
            if reason:
                reasons[where, reason].append(f"`{recipe.name}`")
        lines.append(f"| `{recipe.name}` | {' | '.join(cells)} | {_sent(method)} |")
    why = [
        f"- not with `{where}`: {', '.join(names)}, because {reason}"
        for (where, reason), names in sorted(reasons.items(), key=lambda item: SCENARIOS.index(item[0][0]))
    ]
    return "\n".join([*lines, "", *why])


def _sent(method: Method) -> str:
    return "; ".join(part.sends for part in method.parts if part.sends) or "nothing"


def measured(where: str, results: Path) -> str:
    """Accuracy by method in a scenario, the best first, each beside the scenario's lower bound."""
    found = read_results(results if where == CLIENTS else results.with_name(OTHERS), where)
    if not found:
        return "Not measured yet."
    bound = LOWER[where]
    accuracy = {name: {seed: row["mean_last"] for seed, row in rows.items()} for name, rows in found.items()}
    means = {name: statistics.fmean(values.values()) for name, values in accuracy.items()}
    others = [name for name in sorted(means, key=lambda name: -means[name]) if name != bound]
    pairs = {name: paired_difference(accuracy[name], accuracy.get(bound, {})) for name in others}
    known = {name: one for name, one in pairs.items() if one is not None}
    tested = {name: one for name, one in known.items() if one.low is not None}
    corrected = known | dict(zip(tested, holm(list(tested.values())), strict=True))
    lines = [f"| method | accuracy | seeds | against `{bound}` | MB sent |", "|---|---:|---:|---|---:|"]
    for name in sorted(means, key=lambda name: -means[name]):
        sent = statistics.fmean(row["megabytes"] for row in found[name].values())
        values = list(accuracy[name].values())
        against = "the bound" if name == bound else _against(corrected.get(name))
        lines.append(f"| {_shown(name)} | {spread(values)} | {len(values)} | {against} | {sent:.0f} |")
    fewest = min((one.pairs for one in tested.values()), default=0)
    note = warning(fewest)
    return "\n".join([*lines, *(["", f"{note[0].upper()}{note[1:]}."] if note else [])])


def read_results(file: Path, where: str) -> By:
    """Rows of a file of results by method and seed; a file without a column of scenarios is of one."""
    found: By = defaultdict(dict)
    if file.exists():
        with file.open(newline="", encoding="utf-8") as opened:
            for row in csv.DictReader(opened):
                if row.get("scenario", where) == where:
                    numbers = {key: float(row[key]) for key in ("mean_last", "last", "best", "megabytes")}
                    found[row["method"]][int(row["seed"])] = numbers
    return dict(found)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation of shares, in percent; one value has no spread."""
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{deviation} %"


def _shown(name: str) -> str:
    method, _, settings = name.partition(" ")
    return f"`{method}` {settings}".strip()


def _against(found: Difference | None) -> str:
    if found is None:
        return "no common seed"
    if found.low is None or found.high is None:
        return f"{100 * found.mean:+.1f} ({found.verdict})"
    return f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]: {found.verdict}"
