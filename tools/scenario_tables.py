"""The generated parts of the page about scenarios: which method is defined where, what it sends, results."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS, SERVER
from proxyfl.methods import registry
from proxyfl.results.paired import Difference, holm, paired_difference, warning

LOWER = {CLIENTS: "fedavg", SERVER: "server-only", PARTIAL: "fedavg"}
"""What a method must beat for its unlabelled images to have been of use."""

OTHERS = "scenarios.csv"
"""The file of results with labels at the server or at some clients."""

Seeds = dict[int, dict[str, float]]
By = dict[str, Seeds]
NUMBERS = ("mean_last", "last", "best", "megabytes")
SEEDS = 3
"""How many a result has unless it says otherwise."""
MARKS = {"better": " ▲", "worse": " ▼"}
"""Of an accuracy that differs from the lower bound beyond noise."""


@dataclass(frozen=True)
class Measured:
    """What was measured in a scenario, by method as results name it."""

    bound: str
    rows: By
    dtypes: dict[str, str]
    """The precision of each method's rows."""
    against: dict[str, Difference]
    """Differences to the bound in the same precision, corrected for all of them together."""

    @cached_property
    def accuracy(self) -> dict[str, list[float]]:
        """Of every seed, the best method first."""
        found = {name: [row["mean_last"] for row in seeds.values()] for name, seeds in self.rows.items()}
        return dict(sorted(found.items(), key=lambda item: -statistics.fmean(item[1])))

    def cell(self, name: str) -> str:
        """Mean accuracy in percent, with a mark where it is better or worse than the bound, and the number of
        seeds where they are few; empty where it was not run.
        """
        if name not in self.rows:
            return ""
        verdict = self.against[name].verdict if name in self.against else ""
        values = self.accuracy[name]
        few = f" ({len(values)})" if len(values) < SEEDS else ""
        return f"{100 * statistics.fmean(values):.1f}{few}" + MARKS.get(verdict.split(",")[0], "")


def compared(where: str, results: Path, of: str = "") -> Measured:
    """The rows of a scenario, each method beside the lower bound; or those ``of`` one method: its variants
    and what is attached to it, beside itself.
    """
    found = read_results(results if where == CLIENTS else results.with_name(OTHERS), where)
    bound = of or LOWER[where]
    names = [name for name in found if (_belongs(name, of) if of else "(" not in name)]
    chosen = {name: most_seeds(found[name]) for name in names}
    pairs = {
        name: paired_difference(_accuracy(mine), _accuracy(found[bound].get(dtype, {})))
        for name, (dtype, mine) in chosen.items()
        if name != bound and bound in found
    }
    known = {name: one for name, one in pairs.items() if one is not None}
    tested = {name: one for name, one in known.items() if one.low is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    rows = {name: mine for name, (_, mine) in chosen.items()}
    return Measured(bound, rows, {name: dtype for name, (dtype, _) in chosen.items()}, known | corrected)


def _belongs(name: str, method: str) -> bool:
    """Whether it is the method, a variant of it, or it with something attached."""
    return name == method or name.startswith((f"{method} (", f"{method}+"))


def most_seeds(by_dtype: dict[str, Seeds]) -> tuple[str, Seeds]:
    """A method's rows of the precision in which it has most; fp32 where it has as many in two."""
    return max(by_dtype.items(), key=lambda item: (len(item[1]), item[0]))


def _accuracy(seeds: Seeds) -> dict[int, float]:
    return {seed: row["mean_last"] for seed, row in seeds.items()}


def methods(results: Path) -> str:
    """Accuracy of every method that has a group in listings, in the scenarios in which it is defined; then
    what travels beside weights, and why it is not defined elsewhere.
    """
    tables = {where: compared(where, results) for where in SCENARIOS}
    known = [recipe.name for recipe in registry.recipes()]  # a plug-in, or one being written, has no group
    ours = [name for name in known if registry.shown(name).group != registry.OTHERS]
    run = {name for table in tables.values() for name in table.rows}
    combined = sorted(name for name in run if "+" in name and name not in ours)
    lines = [f"| method | {' | '.join(SCENARIOS)} |", "|---|---:|---:|---:|"]
    sent: dict[str, list[str]] = defaultdict(list)
    refused: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in [*ours, *combined]:
        method = registry.create(name)
        why = {
            where: next(filter(None, (part.refusal(where) for part in method.parts)), "")
            for where in SCENARIOS
        }
        cells = ["–" if why[where] else tables[where].cell(name) for where in SCENARIOS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
        if name in combined:
            continue
        for reason in dict.fromkeys(filter(None, why.values())):
            homes = " and ".join(f"`{where}`" for where in SCENARIOS if why[where] == reason)
            refused[homes, reason].append(f"`{name}`")
        for part in method.parts:
            if part.sends:
                sent[part.sends].append(f"`{name}`")
    sends = [f"- {', '.join(names)}: {what}" for what, names in sent.items()]
    reasons = [f"- {', '.join(names)} with {homes}: {reason}" for (homes, reason), names in refused.items()]
    more = ["Sent in addition to the weights, as declared in the code:", "", *sends]
    return "\n".join(
        [*lines, "", *more, "", "Combinations that are not defined, and the reason:", "", *reasons]
    )


def measured(where: str, results: Path, of: str = "") -> str:
    """Accuracy by method in a scenario, the best first, each beside the scenario's lower bound; or of one
    method's variants, each beside the method as it is.
    """
    found = compared(where, results, of)
    if not found.rows:
        return "Not measured yet."
    head = f"| method | accuracy | seeds | precision | against `{found.bound}` | MB sent |"
    lines = [head, "|---|---:|---:|---|---|---:|"]
    for name, values in found.accuracy.items():
        sent = statistics.fmean(row["megabytes"] for row in found.rows[name].values())
        against = f"the {'method' if of else 'bound'}"
        if name != found.bound:
            against = _against(found.against.get(name))
        cells = [_shown(name), spread(values), str(len(values)), found.dtypes[name], against, f"{sent:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    note = warning(min((one.pairs for one in found.against.values() if one.low is not None), default=0))
    return "\n".join([*lines, *(["", f"{note[0].upper()}{note[1:]}."] if note else [])])


def read_results(file: Path, where: str) -> dict[str, dict[str, Seeds]]:
    """Rows of a file of results by method, precision and seed; a file without a column of scenarios is of
    one.
    """
    found: dict[str, dict[str, Seeds]] = defaultdict(lambda: defaultdict(dict))
    if file.exists():
        with file.open(newline="", encoding="utf-8") as opened:
            for row in csv.DictReader(opened):
                if row.get("scenario", where) == where:
                    numbers = {key: float(row[key]) for key in NUMBERS if key in row}
                    found[row["method"]][row.get("dtype", "")][int(row["seed"])] = numbers
    return found


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
