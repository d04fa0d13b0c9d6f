"""Runs as plain data for a page: what is shown, and which runs differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from proxyfl import __version__
from proxyfl.core.config import Config
from proxyfl.report import style
from proxyfl.report.html import records as recorded
from proxyfl.report.html.pieces import Labels, pieces
from proxyfl.report.html.records import Records
from proxyfl.runs.run import Run

COLOURS = {
    style.BLACK: "black", style.ORANGE: "orange", style.SKY: "sky", style.GREEN: "green",
    style.BLUE: "blue", style.VERMILLION: "vermillion", style.PURPLE: "purple",
}  # fmt: skip
DASHES: dict[style.Line, str] = {
    style.SOLID: "", style.DASHED: "6 3", style.DOTTED: "1.5 2.5", style.DASH_DOT: "7 3 1.5 3",
}  # fmt: skip
SAME_ANYWAY = ("seed", "preset", "keep.", "compute.")
"""Settings in which runs of one group may differ."""


def gather(runs: Sequence[Run], title: str = "", labels: Labels | None = None) -> dict[str, Any]:
    """Everything a page shows of these runs; with ``labels`` their data sets are opened."""
    return page_data([(run, run_data(run, Records.of(run), pieces(run, labels))) for run in runs], title)


def page_data(runs: Sequence[tuple[Run, dict[str, Any]]], title: str = "") -> dict[str, Any]:
    """A page about runs whose data is at hand."""
    names = [run.path.name for run, _ in runs]
    return {
        "title": title or (names[0] if len(names) == 1 else f"{len(names)} runs"),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "groups": groups([run.config for run, _ in runs]),
        "runs": [data for _, data in runs],
    }


def run_data(run: Run, records: Records, parts: Mapping[str, Any]) -> dict[str, Any]:
    """One run: its settings, its curves and totals so far, and its ``parts``."""
    config, notes = run.config, dict(parts["notes"])
    failed, failed_in_all = recorded.failures(records)
    prior = recorded.over_rounds(records, "prior")
    if records.metrics:
        if prior is None:
            notes["prior"] = "the method keeps no class prior"
        if not any(line.get("pseudo") for line in records.metrics):
            notes["pseudo"] = "the method makes no pseudo-labels"
    return {
        **status(run, records),
        "summary": recorded.summary(records, config.keep.last_rounds),
        "settings": settings(config),
        **parts,
        "curves": recorded.curves(records),
        "per_class": recorded.over_rounds(records, "per_class"),
        "prior": prior,
        "traffic": recorded.traffic(records),
        "seconds": {name: recorded.number(value) for name, value in recorded.phases(records).items()},
        "failures": failed,
        "failures_in_all": failed_in_all,
        "notes": notes,
    }


def status(run: Run, records: Records) -> dict[str, Any]:
    """A run in a line of the list: what it is and how far."""
    config, state = run.config, records.state(run)
    total, last = config.federation.rounds, records.metrics[-1] if records.metrics else {}
    left = records.seconds_left(total) if state == "running" else None
    return {
        "name": run.path.name,
        "method": config.method.name,
        "data": config.data.name,
        "seed": config.seed,
        "done": len(records.metrics),
        "total": total,
        "accuracy": recorded.number(last.get("accuracy")),
        "state": state,
        "left": recorded.number(left, 4),
    }


def settings(config: Config) -> dict[str, str]:
    """Every setting under its full name, as a config file would have it."""
    return {name: _text(value) for name, value in _flat(config.to_tree())}


def groups(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """Runs that differ in nothing but the seed, under one label and with one look."""
    members: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for position, config in enumerate(configs):
        key = tuple(pair for pair in settings(config).items() if not pair[0].startswith(SAME_ANYWAY))
        members.setdefault(key, []).append(position)
    tables = [dict(key) for key in members]
    labels = [_label(table, tables) for table in tables]
    names: list[str] = []
    for table, label in zip(tables, labels, strict=True):
        method = table["method.name"]
        names.append(method if method not in names else f"{method}+{label}")
    looks = style.looks(names)
    return [
        {"label": label, "look": _look(looks[name]), "runs": runs}
        for label, name, runs in zip(labels, names, members.values(), strict=True)
    ]


def _label(table: Mapping[str, str], tables: Sequence[Mapping[str, str]]) -> str:
    """The method, and the settings that tell it from others of that name."""
    method = table["method.name"]
    same = [other for other in tables if other["method.name"] == method]
    differing = [name for name in table if any(other.get(name) != table[name] for other in same)]
    if "data.name" not in differing and any(other["data.name"] != table["data.name"] for other in tables):
        differing.insert(0, "data.name")
    return ", ".join([method, *(f"{name.split('.')[-1]} = {table[name]}" for name in differing)])


def _look(look: style.Look) -> dict[str, Any]:
    if isinstance(look.line, tuple):
        dash = " ".join(f"{length * look.width:g}" for length in look.line[1])
    else:
        dash = DASHES[look.line]
    return {"colour": COLOURS[look.colour], "dash": dash, "marker": look.marker, "width": look.width}


def _flat(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{above}{key}.")
        else:
            pairs.append((f"{above}{key}", value))
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
