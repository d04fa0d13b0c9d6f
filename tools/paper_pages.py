"""The generated parts of the README and the page about the paper: what there is, scales, measured results."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

from paper_pictures import draw_results, picture_name, same_seeds
from proxyfl.core.config import Config
from proxyfl.paper import catalogue
from proxyfl.paper.captions import name_of
from proxyfl.paper.differences import differences
from proxyfl.paper.items import Column, Item
from proxyfl.paper.plan import Case, cases, columns
from proxyfl.paper.questions import PROXYFL
from proxyfl.paper.results import Results, from_csv
from proxyfl.paper.scales import NAMES, TITLES, Scale, scale
from proxyfl.paper.tables import tables
from proxyfl.results.formats import to_markdown

PICTURES = {
    "ranking": "what each reached",
    "curves": "accuracy after each round",
    "along": "what each reached along the axis",
}
BLOCK = re.compile(
    r"<!-- (items|scales|measured|ranking|curves|along|reached)( .+?)? -->\n.*?<!-- /\1 -->", re.DOTALL
)


def refreshed(text: str, results: Path, images: str = "images") -> str:
    """A page with its generated parts as code and results have them now; its pictures are in ``images``."""

    def fill(found: re.Match[str]) -> str:
        kind, words = found[1], found[2] or ""
        if kind == "items":
            body = items()
        elif kind == "scales":
            body = scales()
        elif kind in PICTURES:
            body = pictured(kind, *_exported(words, results), images)
        elif kind == "reached":
            body = reached(*_exported(words, results))
        else:
            body = measured(*_exported(words, results))
        return f"<!-- {kind}{words} -->\n{body}\n<!-- /{kind} -->"

    return BLOCK.sub(fill, text)


def draw_pictures(text: str, results: Path, images: Path) -> list[Path]:
    """The pictures that a page asks for."""
    files = []
    for found in BLOCK.finditer(text):
        if found[1] in PICTURES:
            item, size, values = _exported(found[2], results)
            for column in _columns(item, size, values):
                files += draw_results(found[1], item, size, values, column, images)
    return files


def pictured(kind: str, item: Item, size: Scale, results: Results, images: str = "images") -> str:
    """A picture for each column that has results."""
    lines = [
        f"![{name_of(item)}, scale {size.name}, {TITLES[column.data]}, alpha {column.alpha:g}: "
        f"{PICTURES[kind]}]"
        f"({images}/{picture_name(kind, item, size, column)})"
        for column in _columns(item, size, results)
    ]
    return "\n\n".join(lines) or "No picture yet."


def reached(item: Item, size: Scale, results: Results) -> str:
    """A sentence for each column: what every row reached on the seeds that all have."""
    lines = []
    for column in _columns(item, size, results):
        cells = {row.label: results.get((row.label, column.key), ()) for row in item.rows}
        shown = same_seeds({label: cell for label, cell in cells.items() if cell})
        first = next(iter(shown.values()))
        means = {label: statistics.fmean(each.mean_last for each in cell) for label, cell in shown.items()}
        best = sorted(means, key=lambda label: -means[label])
        seeds = "one seed" if len(first) == 1 else f"{len(first)} seeds"
        values = ", ".join(f"{label} {100 * means[label]:.1f}" for label in best)
        lines.append(
            f"{TITLES[column.data]}, Dirichlet {column.alpha:g}, {seeds}; "
            f"mean accuracy of the last {first[0].last_rounds} of {first[0].rounds} rounds: {values} %."
        )
    return "\n".join(lines) or "Not measured yet."


def _exported(words: str, results: Path) -> tuple[Item, Scale, Results]:
    """An item, a scale, and what is exported of them: of all data sets, or of the one that is named, too."""
    name, size, *data = words.split()
    item = catalogue.item(name)
    file = results / f"{size}-{item.exported or name}.csv"
    found = from_csv(file) if file.exists() else {}
    chosen = {key: cell for key, cell in found.items() if not data or key[1].partition("@")[0] in data}
    return item, scale(size), chosen


def _columns(item: Item, size: Scale, results: Results) -> list[Column]:
    keys = {column for _, column in results}
    named = columns(item, size, {"data": [key.partition("@")[0] for key in keys]})
    return [column for column in named if column.key in keys]


def items() -> str:
    """Every table and figure, with the runs it needs per seed."""
    lines = ["| item | title | what it shows | runs per seed |", "|---|---|---|---:|"]
    for each in catalogue.ITEMS.values():
        runs = f"{len(cases(each, scale('full')))}" if each.has_data else "drawing"
        lines.append(f"| `{each.name}` | {each.title} | {each.shows} | {runs} |")
    return "\n".join(lines)


def scales() -> str:
    """Each scale's protocol for each data set, as the settings come out."""
    heads = [
        "scale", "data set", "run on", "images", "side", "width", "batch", "local epochs", "clients",
        "rounds", "mean of last",
    ]  # fmt: skip
    lines = [heads, ["---", "---", "---", *["---:"] * (len(heads) - 3)]]
    for size in map(scale, NAMES):
        for data, protocol in size.protocols.items():
            config = Case(catalogue.ITEMS["table1"], size, PROXYFL, Column(data, 0.1)).config
            untried = "" if protocol.tried else " (untried)"
            lines.append([size.name, f"{TITLES[data]}{untried}", config.data.name, *_facts(config)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([table, "\n".join(_reasons())])


def _facts(config: Config) -> list[str]:
    data, train, rounds = config.data, config.train, config.federation
    images = f"{data.subset:,.0f}" if data.subset > 1 else "all"
    return [
        images,
        str(data.image_size or "native"),
        str(config.model.width),
        f"{train.batch} + {train.mu * train.batch}",
        str(train.epochs),
        f"{rounds.per_round} of {config.partition.clients}",
        str(rounds.rounds),
        f"{config.keep.last_rounds} rounds",
    ]


def _reasons() -> list[str]:
    """Where reduced protocols are from and how far they were checked, each said once."""
    reasons: dict[str, list[str]] = {}
    for size in map(scale, NAMES):
        for data, protocol in size.protocols.items():
            if protocol.why:
                reasons.setdefault(protocol.why.strip(), []).append(f"{size.name} {TITLES[data]}")
    return [f"- {', '.join(where)}: {why}" for why, where in reasons.items()]


def measured(item: Item, size: Scale, results: Results) -> str:
    """The tables of the columns that have results."""
    command = f"proxyfl paper run {item.name} --scale {size.name}"
    if not results:
        return f"{name_of(item)}, scale {size.name}: not measured yet; `{command}`."
    columns = _columns(item, size, results)
    options = shlex.join(_options(item, size, results, columns))
    shown = [*tables(item, size, results, columns), *differences(item, size, results, columns)]
    return to_markdown(shown, f"{command} {options}".rstrip()).rstrip()


def _options(item: Item, size: Scale, results: Results, columns: Sequence[Column]) -> list[str]:
    """What makes these runs and no others, as far as they are not the whole item over its usual seeds."""
    labels = [row.label for row in item.rows if any(row.label == label for label, _ in results)]
    parts = {
        "data": ([each.data for each in columns], [each.data for each in item.columns]),
        "alpha": ([f"{each.alpha:g}" for each in columns], [f"{each.alpha:g}" for each in item.columns]),
        "row": (labels, [row.label for row in item.rows]),
    }
    chosen = {key: dict.fromkeys(found) for key, (found, every) in parts.items() if {*found} != {*every}}
    only = ",".join(f"{key}={value}" for key, values in chosen.items() for value in values)
    seeds = sorted({result.seed for cell in results.values() for result in cell})
    listed = "" if seeds == [*range(1, size.seeds + 1)] else ",".join(map(str, seeds))
    listed += "," if listed and len(seeds) == 1 else ""
    return [*(["--only", only] if only else []), *(["--seeds", listed] if listed else [])]
