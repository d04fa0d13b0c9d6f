"""Models against sites: how good each model is on the images that each site holds out.

So that one site's failure is not hidden in the sum: the global model of the last measured round and of the
best one, and the models that sites let the others measure. What records hold may come from an untrusted run,
so whatever is not a share or a count is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.core.records import MEASURES, choosing
from proxyfl.core.trees import table_in
from proxyfl.runs.run import Run

ACCURACY = "accuracy"
SHOWN = (ACCURACY, *MEASURES)
"""What is known of a model at a site, by the keys of records."""

NAMES = {ACCURACY: ACCURACY, **{name: MEASURES[name].name for name in SHOWN[1:]}}
MOST = 1000
"""Sites and models that are read of a line."""

Cell = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A model, the ``global`` one or that of a site, and its cell at each site that measured it."""

    model: str
    round: int
    at: dict[str, Cell]
    own: str = ""
    """The site that trained it; empty for the global model."""


@dataclass(frozen=True)
class Matrix:
    """``sizes`` are the images that each site holds out; the first row is the last global model."""

    sizes: dict[str, int]
    rows: list[Row]

    @property
    def measures(self) -> list[str]:
        """Those that some cell has."""
        return [name for name in SHOWN if any(name in cell for row in self.rows for cell in row.at.values())]

    @property
    def worst(self) -> tuple[str, float]:
        """The site at which the last global model is least accurate."""
        at = self.rows[0].at
        name = min(at, key=lambda site: at[site][ACCURACY])
        return name, at[name][ACCURACY]

    def record(self) -> dict[str, Any]:
        """For other programs."""
        rows = [{"model": row.model, "round": row.round, "at": row.at} for row in self.rows]
        return {"images": self.sizes, "models": rows}


def matrix(run: Run) -> Matrix:
    """The matrix of a run; an error says why there is none."""
    found = matrix_of(run.metrics)
    if found is None:
        raise RunError(why_none(run))
    return found


def matrix_of(lines: Sequence[Mapping[str, Any]]) -> Matrix | None:
    """From the lines of ``metrics.jsonl``; None where no round says what single sites measured."""
    evaluated = [line for line in lines if _cells(table_in(line, "evaluation").get("at"))]
    if not evaluated:
        return None
    last, best = evaluated[-1], max(evaluated, key=choosing)
    rows = [Row("global", last["round"], _cells(last["evaluation"]["at"]))]
    if best["round"] != last["round"]:
        rows.append(Row("global best", best["round"], _cells(best["evaluation"]["at"])))
    shared = table_in(last["evaluation"], "models")
    for name, model in list(shared.items())[:MOST]:
        cells = _cells(table_in(shared, name).get("at"))
        if cells and type(model.get("round")) is int:
            rows.append(Row(f"of {name}", model["round"], cells, own=str(name)))
    sizes = {site: int(cell["images"]) for row in reversed(rows) for site, cell in row.at.items()}
    return Matrix({site: sizes[site] for site in sorted(sizes, key=_place(rows))}, rows)


def _place(rows: Sequence[Row]) -> Any:
    """Sites in the order of the first row, then those that only others have."""
    order = {site: place for place, site in enumerate(dict.fromkeys(site for row in rows for site in row.at))}
    return lambda site: order[site]


def _cells(at: Any) -> dict[str, Cell]:
    if not isinstance(at, dict):
        return {}
    found = {str(site): _cell(cell) for site, cell in list(at.items())[:MOST]}
    return {site: cell for site, cell in found.items() if ACCURACY in cell and cell.get("images")}


def _cell(given: Any) -> Cell:
    if not isinstance(given, dict):
        return {}
    cell = {name: given[name] for name in SHOWN if _is_share(given.get(name))}
    count = given.get("images")
    return {**cell, "images": count} if type(count) is int and 0 < count < 1 << 53 else {}


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def why_none(run: Run) -> str:
    """Why there are no records of individual sites, and what to do."""
    if not run.at_sites:
        return (
            f"{run.path} is a simulation; 'proxyfl eval {run.path} --clients' evaluates its "
            "model at every client with held-out images (data.validation)"
        )
    if run.config.privacy.is_on:
        return f"{run.path} has no records of individual sites: differential privacy forbids them"
    if run.config.keep.clients == "none":
        return f"{run.path} has no records of individual sites: start a run with keep.clients = 'auto'"
    if not run.metrics:
        return f"{run.path} has not finished a round yet"
    return (
        f"{run.path}: sites hold out no images, accuracy is measured on the server's test images; "
        "for metrics per site create the federation with --holdout 0.2 instead of --test ('deploy init')"
    )
