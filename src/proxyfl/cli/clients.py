"""``proxyfl show RUN --clients`` and ``proxyfl eval RUN --clients``: who hurts, who gains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from proxyfl.cli.common import plain_table
from proxyfl.core.text import percent, printable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from proxyfl.results.clients import Client
    from proxyfl.runs.run import Run

MOST = 20
"""Clients listed, most unusual first."""


def print_json(run: Run) -> None:
    """All clients, for other programs."""
    from proxyfl.results.clients import ranked

    typer.echo(json.dumps([client.record() for client in ranked(run)], indent=1))


def print_clients(run: Run, console: Console) -> None:
    """The clients of a run, most unusual first, and what is unusual about each."""
    from proxyfl.results.clients import FEWEST, UNUSUAL, ranked

    clients = ranked(run)
    table = _table(clients[:MOST])
    if console.measure(table, options=console.options.update(max_width=1000)).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print("medians over the rounds that a client took part in", style="dim")
    console.print(table)
    if len(clients) > MOST:
        console.print(f"and {len(clients) - MOST:,} more clients, less unusual; --json lists all")
    console.print()
    if len(clients) < FEWEST:
        console.print(
            f"with {len(clients)} clients no client can be called unusual; at least {FEWEST} are needed"
        )
        return
    odd = [client for client in clients if client.words]
    for client in odd[:MOST]:
        line = f"{printable(client.name)}: {'; '.join(client.words)}"
        console.print(line, markup=False, soft_wrap=True)
    if len(odd) > MOST:
        console.print(f"and {len(odd) - MOST:,} more")
    if not odd:
        console.print(f"no client is unusual: no robust score beyond {UNUSUAL:g}")


def _table(clients: list[Client]) -> Table:
    from rich.markup import escape

    from proxyfl.results.clients import MEASURES

    shown = [measure for measure in MEASURES if any(measure.name in client.values for client in clients)]
    heads = ["client", "rounds", *(measure.name for measure in shown), "score"]
    table = plain_table(*heads, right=heads[1:], keep=heads[1:])
    for client in clients:
        cells: list[Any] = [escape(printable(client.name)), str(client.rounds)]
        for measure in shown:
            text = measure.form(client.values[measure.name]) if measure.name in client.values else "–"
            unusual = any(remark.measure == measure.name for remark in client.remarks)
            cells.append(f"[yellow]{text}[/]" if unusual else text)
        table.add_row(*cells, f"{client.score:.1f}")
    return table


def print_accuracies(
    run: Run, model: str, personalised: bool, data_root: Path | None, console: Console
) -> None:
    """A model on the images that each client holds out, lowest accuracy first."""
    from rich.markup import escape

    from proxyfl.runs.personal import at_clients

    found, names = at_clients(run, model, personalised=personalised, data_root=data_root), run.client_names
    heads = ["client", "held out", "accuracy", *(["personalised", "gain"] if personalised else [])]
    table = plain_table(*heads, right=heads[1:], keep=heads)
    for each in found[:MOST]:
        name = names[each.client] if each.client < len(names) else f"client {each.client}"
        cells = [escape(printable(name)), f"{each.held:,}", percent(each.accuracy)]
        if each.personalised is not None:
            cells += [percent(each.personalised), f"{100 * (each.personalised - each.accuracy):+.2f}"]
        table.add_row(*cells)
    console.print(table)
    if len(found) > MOST:
        console.print(f"and {len(found) - MOST:,} more clients with higher accuracy")
    tuned = [each.personalised for each in found if each.personalised is not None]
    mean = sum(each.accuracy for each in found) / len(found)
    words = f"mean over {len(found):,} clients: {percent(mean)}"
    console.print(words + (f", personalised {percent(sum(tuned) / len(tuned))}" if tuned else ""))
