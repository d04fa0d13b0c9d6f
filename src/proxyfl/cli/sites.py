"""``proxyfl show RUN --sites``: every model on the images that every site holds out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from proxyfl.cli.common import plain_table
from proxyfl.core.text import percent, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxyfl.results.sites import Matrix
    from proxyfl.runs.run import Run

MOST = 12
"""Sites that stand side by side; of more, those at which the global model is worst."""


def print_json(run: Run) -> None:
    """The whole matrix, for other programs."""
    from proxyfl.results.sites import matrix

    typer.echo(json.dumps(matrix(run).record(), indent=1))


def print_sites(run: Run, console: Console) -> None:
    """The global model at each site, worst first; then all models side by side where sites share theirs."""
    from proxyfl.results.sites import ACCURACY, matrix

    found = matrix(run)
    last = found.rows[0]
    console.print(f"global model of round {last.round} on each site's held-out images")
    console.print(_each(found))
    name, accuracy = found.worst
    total = sum(cell["images"] for cell in last.at.values())
    mean = sum(cell["images"] * cell[ACCURACY] for cell in last.at.values()) / total
    if len(last.at) > 1:
        words = f"worst: {printable(name)} with {percent(accuracy)}; all images together {percent(mean)}"
        console.print(words, markup=False, soft_wrap=True)
    if len(found.rows) > 1:
        console.print("\naccuracy of every model at every site")
        console.print(_matrix(found))
        if len(found.sizes) > MOST:
            console.print(f"the {MOST} sites with the lowest accuracy of {len(found.sizes)}; --json has all")


def _each(found: Matrix) -> Table:
    """The last global model: a line for each site, the lowest accuracy first."""
    from rich.markup import escape

    from proxyfl.results.sites import ACCURACY, NAMES

    at = found.rows[0].at
    shown = [name for name in NAMES if any(name in cell for cell in at.values())]
    heads = ["site", "images", *(NAMES[name].replace(" ", "\n") for name in shown)]  # fits into 80 columns
    table = plain_table(*heads, right=heads[1:], keep=heads)
    for site in sorted(at, key=lambda one: at[one][ACCURACY]):
        cells = [percent(at[site][name]) if name in at[site] else "–" for name in shown]
        table.add_row(escape(printable(site)), f"{at[site]['images']:,}", *cells)
    return table


def _matrix(found: Matrix) -> Table:
    from rich.markup import escape

    from proxyfl.results.sites import ACCURACY

    first = found.rows[0].at
    worst = sorted(found.sizes, key=lambda site: first.get(site, {}).get(ACCURACY, 1.0))[:MOST]
    sites = [site for site in found.sizes if site in worst]
    sized = [f"{escape(printable(site))} ({found.sizes[site]:,})" for site in sites]
    table = plain_table("model", "round", *sized, right=("round", *sized), keep=("model", *sized))
    for row in found.rows:
        cells = []
        for site in sites:
            text = percent(row.at[site][ACCURACY]) if site in row.at else "–"
            cells.append(f"[bold]{text}[/]" if site == row.own else text)
        table.add_row(escape(printable(row.model)), str(row.round), *cells)
    return table
