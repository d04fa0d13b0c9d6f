"""Runs as plain data for a page: what is shown, and which runs differ in nothing but the seed."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from proxyfl import __version__
from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.text import name_alone
from proxyfl.report import plot_style
from proxyfl.report.html import records as recorded
from proxyfl.report.html.pieces import Labels, pieces, site_matrix
from proxyfl.report.html.records import Records
from proxyfl.results.outcome import find_copies
from proxyfl.results.settings import (
    DATA,
    FIRST,
    METHOD,
    Distinction,
    Settings,
    distinguished_by,
    order,
    plain,
    settings_of,
    short_names,
    telling,
)
from proxyfl.runs.directory import accuracy_called, measured
from proxyfl.runs.run import Run

COLOURS = {
    plot_style.BLACK: "black", plot_style.ORANGE: "orange", plot_style.SKY: "sky", plot_style.GREEN: "green",
    plot_style.BLUE: "blue", plot_style.VERMILLION: "vermillion", plot_style.PURPLE: "purple",
}  # fmt: skip
DASHES: dict[plot_style.Line, str] = {
    plot_style.SOLID: "", plot_style.DASHED: "6 3", plot_style.DOTTED: "1.5 2.5",
    plot_style.DASH_DOT: "7 3 1.5 3",
}  # fmt: skip
LINES: tuple[plot_style.Line, ...] = (
    plot_style.SOLID, plot_style.DASHED, plot_style.DOTTED,
    plot_style.DASH_DOT, plot_style.LONG_DASH, plot_style.DASH_DOT_DOT,
)  # fmt: skip
MARKERS = "o^sDvP*Xph<>d"


def gather(
    runs: Sequence[Run],
    title: str = "",
    labels: Labels | None = None,
    tell: Callable[[Path, str], None] | None = None,
) -> dict[str, Any]:
    """Everything a page shows of these runs; with ``labels`` their data sets are opened. Where others are
    left, ``tell`` hears of the damaged ones.
    """
    found: list[tuple[Run, dict[str, Any]]] = []
    damaged: list[tuple[Run, ProxyFLError]] = []
    for run in runs:
        try:
            found.append((run, run_data(run, Records.of(run), pieces(run, labels))))
        except ProxyFLError as error:
            damaged.append((run, error))
    for run, fault in damaged:
        if tell is None or not found:
            raise fault
        tell(run.path, str(fault))
    data = page_data(found, title)
    data["notes"] += [f"Left out, damaged: {run.path.name}." for run, _ in damaged]
    return data


def page_data(runs: Sequence[tuple[Run, dict[str, Any]]], title: str = "") -> dict[str, Any]:
    """A page about runs whose data is at hand."""
    names, copies = [data["name"] for _, data in runs], _copies(runs)
    return {
        "title": title or (names[0] if len(names) == 1 else f"{len(names)} runs"),
        "version": __version__,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "groups": groups([run.config for run, _ in runs], copies),
        "notes": [
            f"Counted once: {names[copy]} is a copy of {names[first]}." for copy, first in copies.items()
        ],
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
        "accuracy_called": accuracy_called([records.metrics]),
        "summary": recorded.summary(records, config.keep.last_rounds),
        "privacy": recorded.privacy(records, config.privacy),
        "settings": settings(config),
        **parts,
        "curves": recorded.curves(records),
        "per_class": recorded.over_rounds(records, "per_class"),
        "precision": recorded.over_rounds(records, "precision"),
        "sites": site_matrix(records.metrics),
        "prior": prior,
        "traffic": recorded.traffic(records),
        "seconds": {name: recorded.number(value) for name, value in recorded.phases(records).items()},
        "failures": failed,
        "failures_in_all": failed_in_all,
        "notes": notes,
    }


def status(run: Run, records: Records) -> dict[str, Any]:
    """A run in a line of the list: what it is and how far."""
    config, state = run.config, run.state
    total, last = config.federation.rounds, (measured(records.metrics) or [{}])[-1]
    left = records.seconds_left(total) if state == "running" else None
    return {
        "name": run.path.name,
        "method": config.method.name,
        "data": name_alone(config.data.name),
        "seed": config.seed,
        "done": len(records.metrics),
        "total": total,
        "accuracy": recorded.number(last.get("accuracy")),
        "state": state,
        "left": recorded.number(left, 4),
    }


def settings(config: Config) -> dict[str, str]:
    """Every setting under its full name, as a config file would have it."""
    return {name: plain(value) for name, value in settings_of(config).items()}


def groups(configs: Sequence[Config], copies: Container[int] = ()) -> list[dict[str, Any]]:
    """Runs that differ in nothing but the seed, under one label and with one look; methods stay together.
    Those at the places of ``copies`` are in no group.
    """
    members: dict[Distinction, list[int]] = {}
    for position, config in enumerate(configs):
        if position not in copies:
            members.setdefault(distinguished_by(settings_of(config)), []).append(position)
    tables = [dict(key) for key in members]
    tell = _telling(tables)
    methods = list(dict.fromkeys(table[METHOD] for table in tables))

    def place(one: tuple[Settings, list[int]]) -> tuple[Any, ...]:
        return (methods.index(one[0][METHOD]), *(order(one[0].get(key, "")) for key in tell))

    found = sorted(zip(tables, members.values(), strict=True), key=place)
    shown = _looks([table[METHOD] for table, _ in found])
    return [
        {"label": _label(table, tables, tell), "look": _look(look), "runs": runs}
        for (table, runs), look in zip(found, shown, strict=True)
    ]


def _copies(runs: Sequence[tuple[Run, Mapping[str, Any]]]) -> dict[int, int]:
    """The places of runs that are there twice, each with the place of the one that counts, which is further.
    Only finished ones are held against each other.
    """
    places = sorted(range(len(runs)), key=lambda place: runs[place][1]["done"], reverse=True)
    return find_copies(
        (
            place,
            data["name"],
            settings_of(run.config),
            data["curves"].get("accuracy") if data["state"] == "finished" else None,
        )
        for place, (run, data) in ((place, runs[place]) for place in places)
    )


def _telling(tables: Sequence[Settings]) -> list[str]:
    """Settings by which groups differ: the data set where there are several, and of the others those
    whose values are not settled by the ones before them. The method's name comes first.
    """
    known = dict.fromkeys([METHOD, *FIRST, *(key for table in tables for key in table)])
    keys = sorted(known, key=lambda key: key.startswith("method.") and key != METHOD)
    several = len({table[DATA] for table in tables}) > 1
    return telling(keys, tables, always=(DATA,) if several else ())[0]


def _label(table: Settings, tables: Sequence[Settings], tell: Sequence[str]) -> str:
    """The method, and the settings that tell it from others: its own parameters where its runs vary them."""
    same = [other for other in tables if other[METHOD] == table[METHOD]]
    shown = [
        key
        for key in tell
        if key != METHOD and (not key.startswith("method.") or len({other.get(key) for other in same}) > 1)
    ]
    names = short_names(tell)
    return ", ".join([table[METHOD], *(f"{names[key]} = {plain(table.get(key, '–'))}" for key in shown)])


def _looks(methods: Sequence[str]) -> list[plot_style.Look]:
    """A look for each group: its method's, and for another group of that method one in the same colour."""
    base, found = plot_style.looks(dict.fromkeys(methods)), dict[int, plot_style.Look]()
    for place, method in enumerate(methods):
        if method not in methods[:place]:
            found[place] = base[method]
    for place, method in enumerate(methods):
        if place not in found:
            found[place] = _variant(base[method], list(found.values()))
    return [found[place] for place in range(len(methods))]


def _variant(look: plot_style.Look, taken: Sequence[plot_style.Look]) -> plot_style.Look:
    """The same colour with the line and marker that are least in use, first of all in that colour."""

    def use(line: plot_style.Line, marker: str) -> tuple[int, int, int]:
        mine = [other for other in taken if other.colour == look.colour]
        both = sum((other.line, other.marker) == (line, marker) for other in taken)
        return both, sum(o.line == line for o in mine), sum(o.marker == marker for o in mine)

    line, marker = min(product(LINES, MARKERS), key=lambda pair: use(*pair))
    return replace(look, line=line, marker=marker)


def _look(look: plot_style.Look) -> dict[str, Any]:
    if isinstance(look.line, tuple):
        dash = " ".join(f"{length * look.width:g}" for length in look.line[1])
    else:
        dash = DASHES[look.line]
    return {"colour": COLOURS[look.colour], "dash": dash, "marker": look.marker, "width": look.width}
