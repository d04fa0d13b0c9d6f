"""Many runs as tidy pandas data frames: one row per run, and one row per run and round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.errors import RunError, missing_extra
from proxyfl.core.trees import dotted
from proxyfl.results.outcome import Outcome, read_all
from proxyfl.results.settings import BESIDE, DATA, METHOD, Settings, settings_of
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.run import Run, open_run, runs_below, seconds_of

if TYPE_CHECKING:
    from pandas import DataFrame

NAMED = {
    "method": METHOD,
    "data": DATA,
    "alpha": "partition.alpha",
    "label_ratio": "labels.ratio",
    "fidelity": "fidelity",
    "seed": "seed",
}
"""Settings that every frame has, by the name of their column. Others that vary are called by their key."""

GROUPS = {"validation": "validation", "losses": "loss", "server": "server", "pseudo": "pseudo"}
"""Tables of numbers in a round's metrics, and what the names of their columns begin with."""


@dataclass(frozen=True)
class Results:
    """Runs that were read together; ``notes`` tell which are left out and why."""

    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def runs(self) -> DataFrame:
        """One row per run: what it is, whether it is finished, its accuracies (0 to 1), time and traffic."""
        settings = [outcome.settings for outcome in self.outcomes]
        return _frame(
            _about(outcome.run, outcome.settings, _varying(settings)) | _totals(outcome)
            for outcome in self.outcomes
        )

    @cached_property
    def rounds(self) -> DataFrame:
        """One row per run and round: what it is, accuracy (NaN where it was not measured), every loss, what
        is known of pseudo-labels, clients, time and traffic.
        """
        return rounds_frame([outcome.run for outcome in self.outcomes])


def gather(places: Iterable[str | Path], where: Mapping[str, Any]) -> Results:
    """The runs at some places, each a run or a folder with runs in it, that have some settings."""
    found: list[Run] = []
    damaged: list[str] = []
    for place in map(Path, places):
        paths = [place] if RunDirectory(place).is_run else list(runs_below(place))
        if not paths:
            raise RunError(f"no runs in {place}, nor in the folders in it; name a run or a folder with runs")
        for run in map(open_run, paths):
            if isinstance(run, Run):
                found.append(run)
            else:
                damaged.append(f"left out, damaged: {run.path}: {run.reason}")
    asked = [
        (key.replace("__", "."), each)
        for key, value in where.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    outcomes, notes = read_all(found, partial=True, where=asked)
    return Results(tuple(outcomes), (*damaged, *notes))


def rounds_frame(runs: Sequence[Run]) -> DataFrame:
    """One row per run and round."""
    settings = [settings_of(run.config) for run in runs]
    varying = _varying(settings)
    return _frame(
        _about(run, own, varying) | row
        for run, own in zip(runs, settings, strict=True)
        for row in round_rows(run)
    )


def clients_frame(run: Run) -> DataFrame:
    """One row per round and client of a run; ``name`` where clients have one."""
    names = run.client_names
    return _frame(
        {
            "round": row["round"],
            "client": row["client"],
            **({"name": names[row["client"]]} if row["client"] < len(names) else {}),
            **{name: value for name, value in row.items() if name not in ("round", "client", "losses")},
            **{f"loss_{name}": float(value) for name, value in row.get("losses", {}).items()},
        }
        for row in run.client_rows
    )


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a data frame: what a row lacks is NaN, columns stand in the order in which they appear."""
    try:
        import pandas
    except ImportError as error:
        raise missing_extra("pandas", "pandas") from error
    return pandas.DataFrame.from_records([*rows])


def _varying(tables: Sequence[Settings]) -> list[str]:
    """Keys of settings that differ between runs and have no column yet."""
    known = dict.fromkeys(key for table in tables for key in table)
    return [
        key
        for key in known
        if key not in NAMED.values()
        and not BESIDE.fullmatch(key)
        and len({table.get(key) for table in tables}) > 1
    ]


def _about(run: Run, settings: Settings, varying: Iterable[str]) -> dict[str, Any]:
    named = {column: settings[key] for column, key in NAMED.items()}
    return {"run": str(run.path), **named, **{key: settings.get(key) for key in varying}}


def _totals(outcome: Outcome) -> dict[str, Any]:
    totals = {"finished": outcome.finished, **asdict(outcome.summary), "last_rounds": outcome.tail}
    return {**totals, **outcome.measures, "commit": outcome.commit}


def round_rows(run: Run) -> Iterable[dict[str, Any]]:
    """A row of numbers for each round."""
    timing = {line.get("round"): line for line in run.timing}
    for line in run.metrics:
        row = {"round": line["round"], "accuracy": line.get("accuracy", float("nan"))}
        row |= {name: float(value) for name, value in line.get("measures", {}).items()}
        for group, prefix in GROUPS.items():
            row |= {f"{prefix}_{name}": float(value) for name, value in dotted(line.get(group, {})).items()}
        row |= {name: len(line.get(name, ())) for name in ("clients", "failed")}
        row |= {f"megabytes_{way}": line["traffic"][f"bytes_{way}"] / 1e6 for way in ("up", "down")}
        if "privacy" in line:
            row["epsilon"] = float(line["privacy"]["epsilon"])
        if "record_privacy" in line:
            row["record_epsilon"] = float(line["record_privacy"]["epsilon"])
        seconds, cpu_seconds = seconds_of(timing.get(line["round"], {}))
        yield row | {"seconds": seconds, "cpu_seconds": cpu_seconds}
