"""Any number of a run's rounds against the rounds, runs drawn together by any setting."""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxyfl.core.errors import ConfigError, RunError, nearest
from proxyfl.core.files import write_output
from proxyfl.core.records import MEASURES
from proxyfl.core.text import name_alone
from proxyfl.report import plot_style
from proxyfl.report.curves import draw_curves
from proxyfl.results.frames import round_rows
from proxyfl.results.settings import BESIDE, METHOD, plain, settings_of, short_names
from proxyfl.runs.directory import accuracy_called
from proxyfl.runs.run import Run
from proxyfl.runs.short_names import COMMON

KINDS = ("pdf", "png", "svg")
SHARES = ("accuracy", *MEASURES)
"""Drawn in per cent."""


def plot(
    runs: Sequence[Run],
    path: str | Path,
    metric: str = "accuracy",
    by: Sequence[str] = ("method",),
    title: str = "",
) -> Path:
    """Draw a metric of runs, a line for each value of the settings ``by``; the file's name says the format.

    Runs of a line may differ in the seed alone: the line is their mean, the band lowest to highest.
    """
    place = Path(path)
    kind = place.suffix.removeprefix(".")
    if kind not in KINDS:
        raise ConfigError(f"{place} must end in .pdf, .png or .svg")
    metric = metric.replace("-", "_")  # as `table --metric macro-f1` says it
    groups = grouped(runs, by)
    curves = {name: _values(name, each, metric) for name, each in groups.items()}
    data = ", ".join(dict.fromkeys(name_alone(run.config.data.name) for run in runs))
    words = MEASURES[metric].name if metric in MEASURES else metric.replace("_", " ")
    if metric == "accuracy":
        words = accuracy_called(run.metrics for run in runs)
    figure = draw_curves(
        curves,
        title or f"{words[:1].upper()}{words[1:]}{'' if words.endswith('sites') else f' on {data}'}",
        legend=", ".join(by),
        y=f"{words} (%)" if metric in SHARES else words,
    )
    content = io.BytesIO()
    with plot_style.repeatable():
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        figure.savefig(content, format=kind, dpi=2 * plot_style.DPI, metadata=metadata)
    return write_output(place, content.getvalue())


def grouped(runs: Sequence[Run], by: Sequence[str]) -> dict[str, list[Run]]:
    """Runs by the values of these settings; refused where runs of a group differ in more than the seed."""
    keys = [METHOD if name == "method" else COMMON.get(name, name) for name in by]
    tables = [settings_of(run.config) for run in runs]
    known = {key for table in tables for key in table}
    for name, key in zip(by, keys, strict=True):
        if key not in known:
            raise ConfigError(f"no run has a setting '{name}'; {nearest(name, [*known, *COMMON, 'method'])}")
    short = short_names(keys)
    groups: dict[str, list[int]] = defaultdict(list)
    for at, table in enumerate(tables):
        words = [
            plain(table.get(key, "none")) if key == METHOD or len(keys) == 1
            else f"{short[key]} {plain(table.get(key, 'none'))}" for key in keys
        ]  # fmt: skip
        groups[", ".join(words)].append(at)
    for name, members in groups.items():
        differ = [
            key
            for key in tables[members[0]]
            if not BESIDE.fullmatch(key) and len({tables[at].get(key) for at in members}) > 1
        ]
        if differ:
            more = ",".join([*by, differ[0]])
            raise ConfigError(f"the runs of {name} differ in {', '.join(differ[:3])}, too; draw --by {more}")
    return {name: [runs[at] for at in members] for name, members in groups.items()}


def _values(name: str, runs: Sequence[Run], metric: str) -> NDArray[np.float64]:
    found = [list(round_rows(run)) for run in runs]
    known = {key for rows in found for row in rows for key in row} - {"round"}
    if known and metric not in known:
        raise ConfigError(f"the runs of {name} have no metric '{metric}'; {nearest(metric, known)}")
    common = min(map(len, found), default=0)
    factor = 100 if metric in SHARES else 1
    values = factor * np.array([[row.get(metric, math.nan) for row in rows[:common]] for rows in found])
    if not common or np.isnan(values).any(0).all():
        raise RunError(f"the runs of {name} have no round in common with a value of {metric}")
    return np.asarray(values)
