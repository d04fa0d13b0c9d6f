"""The generated parts of the page about the paper: what there is, the scales, results from ``results/``."""

from __future__ import annotations

import re
from pathlib import Path

from proxyfl.core.config import Config
from proxyfl.paper import catalogue
from proxyfl.paper.captions import name_of
from proxyfl.paper.catalogue import PROXYFL, Column, Item
from proxyfl.paper.plan import Case, cases
from proxyfl.paper.results import from_csv
from proxyfl.paper.scales import NAMES, TITLES, Scale, scale
from proxyfl.paper.tables import tables
from proxyfl.report.formats import to_markdown

BLOCK = re.compile(r"<!-- (items|scales|measured)( .+?)? -->\n.*?<!-- /\1 -->", re.DOTALL)


def refreshed(text: str, results: Path) -> str:
    """A page with its generated parts as code and results have them now."""

    def fill(found: re.Match[str]) -> str:
        kind, words = found[1], found[2] or ""
        if kind == "items":
            body = items()
        elif kind == "scales":
            body = scales()
        else:
            name, size = words.split()
            body = measured(catalogue.item(name), scale(size), results / f"{size}-{name}.csv")
        return f"<!-- {kind}{words} -->\n{body}\n<!-- /{kind} -->"

    return BLOCK.sub(fill, text)


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


def measured(item: Item, size: Scale, file: Path) -> str:
    """The tables of the columns for which a file has results."""
    command = f"proxyfl paper run {item.name} --scale {size.name}"
    if not file.exists():
        return f"{name_of(item)}, scale {size.name}: not measured yet; `{command}`."
    results = from_csv(file)
    keys = {column for _, column in results}
    every = [*item.columns, *(Column(data, column.alpha) for data in size.extra for column in item.columns)]
    columns = [column for column in dict.fromkeys(every) if column.key in keys]
    return to_markdown(tables(item, size, results, columns), command).rstrip()
