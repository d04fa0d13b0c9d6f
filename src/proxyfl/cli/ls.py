"""``proxyfl ls`` and ``proxyfl show``: which runs there are, and one of them in detail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import RunName, command, examples, find_run, is_run, out, plain_table, runs_folder
from proxyfl.cli.present import curve, measures_line, settings_tree, summary_table
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.text import name_alone, percent, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.run import Damaged, Run

LS_EXAMPLES = examples("proxyfl ls", "proxyfl ls results/runs --json")
SHOW_EXAMPLES = examples(
    "proxyfl show runs/digits-proxyfl-seed1-4b2c91",
    "proxyfl show try-1 --rounds 20",
    "proxyfl show try-1 --clients",
    "proxyfl show hospital/run --sites",
)
COLOURS = {"finished": "green", "running": "cyan", "stopped": "yellow"}
MOST_CLIENTS = 50
"""Clients listed by name."""


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


def ls(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="The folder with the runs. Default: $PROXYFL_RUNS, else runs.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder: progress, accuracy, and whether a process is running it."""
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.run import list_runs

    place = folder or runs_folder()
    if folder is not None and not folder.is_dir():
        raise RunError(f"{folder} is not a folder; runs are kept where 'proxyfl run --runs DIR' put them")
    if is_run(place):
        raise RunError(f"{place} is itself a run; look at it with '{command('show', place)}'")
    runs = list_runs(place)
    if as_json:
        typer.echo(json.dumps([_record(run) for run in runs], indent=1))
        return
    cut_short = [
        path for path in (sorted(place.iterdir()) if place.is_dir() else []) if _half_made(RunDirectory(path))
    ]
    console = out()
    if not runs and not cut_short:
        console.print(f"no runs in {place}; start one with: proxyfl run", markup=False, soft_wrap=True)
        return
    right = ("seed", "rounds", "accuracy")
    table = plain_table("name", "data", "method", "seed", "rounds", "accuracy", "state", right=right)
    records = [_record(run) for run in runs]
    for record in records:
        table.add_row(*_row(record))
    console.print(table)
    for record in records:
        if reason := record.get("reason"):
            console.print(f"{record['name']}: {reason}", style="red", markup=False, soft_wrap=True)
    if runs:
        console.print("[dim]accuracy: mean of the last rounds, as keep.last_rounds of each run says[/]")
    for path in cut_short:
        name = path.name.removeprefix(".").removesuffix(".creating")
        line = f"not started: {name}; start with: {command('resume', place / name)}"
        console.print(line, markup=False, soft_wrap=True)


def _half_made(run: RunDirectory) -> bool:
    """What a creation that was cut short has left, or one that is going on."""
    name = run.path.name
    return name.startswith(".") and name.endswith(".creating") and os.path.lexists(run.config)


def _record(run: Run | Damaged) -> dict[str, Any]:
    """One run as the list shows it; a damaged one has the reason."""
    from proxyfl.runs.directory import measured
    from proxyfl.runs.run import Damaged

    place = {"name": run.path.name, "path": str(run.path)}
    if isinstance(run, Damaged):
        return {**place, "state": "damaged", "reason": run.reason}
    try:
        config, lines = run.config, run.metrics
        accuracy = run.summary.mean_last if measured(lines) else None
        state = run.state
    except (ProxyFLError, KeyError, TypeError) as error:
        return {**place, "state": "unreadable", "reason": str(error)}
    return {
        **place,
        "data": config.data.name,
        "method": config.method.name,
        "seed": config.seed,
        "played": len(lines),
        "rounds": config.federation.rounds,
        "accuracy": accuracy,
        "state": state,
    }


def _row(record: dict[str, Any]) -> list[str]:
    from rich.markup import escape

    if "reason" in record:  # which stands below the table
        return [escape(record["name"]), *[""] * 5, f"[red]{record['state']}[/]"]
    return [
        *(escape(text) for text in (record["name"], name_alone(record["data"]), record["method"])),
        str(record["seed"]),
        f"{record['played']}/{record['rounds']}",
        _share(record["accuracy"]),
        f"[{COLOURS[record['state']]}]{record['state']}[/]",
    ]


def show(
    run: RunName,
    rounds: Annotated[int, typer.Option(min=1, help="How many of the last rounds to list.")] = 5,
    clients: Annotated[
        bool, typer.Option("--clients", help="Rank the clients and show what is unusual about each.")
    ] = False,
    sites: Annotated[
        bool, typer.Option("--sites", help="Each model at each site of a real federation, worst site first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """One run: its settings, result, accuracy curve, last rounds and the clients that failed."""
    from proxyfl.cli import clients as by_client
    from proxyfl.cli import sites as by_site
    from proxyfl.runs.directory import measured
    from proxyfl.runs.run import Run

    found = Run(find_run(run))
    if clients and sites:
        raise RunError("--clients and --sites print different tables; use one at a time")
    if clients:
        by_client.print_json(found) if as_json else by_client.print_clients(found, out())
        return
    if sites:
        by_site.print_json(found) if as_json else by_site.print_sites(found, out())
        return
    if as_json:
        typer.echo(json.dumps(_everything(found), indent=1))
        return
    console = out()
    console.print(settings_tree(found.config, found.path.name, console))
    console.print()
    lines, total = found.metrics, found.config.federation.rounds
    if not lines:
        console.print("no round is finished yet")
    else:
        if scored := measured(lines):
            console.print(summary_table(found.summary, found.config.keep.last_rounds))
            if more := measures_line(scored[-1].get("measures", {})):
                console.print(f"round {scored[-1]['round']}: {more}", soft_wrap=True)
            console.print()
            _print_curve(scored, console)
        else:
            every = found.config.federation.evaluate_every
            console.print(f"no round has been evaluated yet: federation.evaluate_every = {every}\n")
        console.print(_last_rounds(lines[-rounds:]))
        console.print()
        console.print(_last_traffic(lines[-1]))
        _print_failures(lines, console)
        _print_privacy(lines[-1], console)
    _print_clients(found, console)
    if (state := found.state) == "running":
        console.print(f"\nrunning: {len(lines)} of {total} rounds done")
    elif state == "stopped":
        how = f"continue with: {command('resume', found.path)}"
        console.print(f"\nstopped after round {len(lines)} of {total}; {how}", markup=False, soft_wrap=True)


def _everything(run: Run) -> dict[str, Any]:
    """A run for other programs: settings, result and all rounds."""
    import dataclasses

    from proxyfl.runs.directory import measured

    lines = run.metrics
    summary = dataclasses.asdict(run.summary) if measured(lines) else None
    return {**_record(run), "config": run.config.to_tree(), "summary": summary, "metrics": lines}


def _print_clients(run: Run, console: Console) -> None:
    """The clients of a natural federation by name, with what each holds."""
    names = run.directory.hints().get("clients")
    held = run.partition if isinstance(names, list) else None
    if held is None or not isinstance(names, list) or len(names) != held.clients:
        return
    from rich.markup import escape

    table = plain_table("client", "labelled", "unlabelled", right=("labelled", "unlabelled"))
    for place, name in enumerate(names[:MOST_CLIENTS]):
        counts = (int(part.sizes[place]) for part in (held.labelled, held.unlabelled))
        table.add_row(escape(printable(str(name))), *(f"{count:,}" for count in counts))
    console.print()
    console.print(table)
    if len(names) > MOST_CLIENTS:
        console.print(f"and {len(names) - MOST_CLIENTS:,} more clients")


def _print_curve(lines: list[dict[str, Any]], console: Console) -> None:
    from proxyfl.runs.directory import accuracy_called

    if len(lines) < 2:
        return
    accuracy = [line["accuracy"] for line in lines]
    rows = curve(accuracy, min(60, max(10, console.width - 24)))
    labels = [percent(max(accuracy)), *[""] * (len(rows) - 2), percent(min(accuracy))]
    for label, row in zip(labels, rows, strict=True):
        console.print(f"[dim]{label:>8}[/] [green]{row.rstrip()}[/]")
    console.print(
        f"[dim]{'':8} {accuracy_called([lines])}, rounds {lines[0]['round']} to {lines[-1]['round']}[/]\n"
    )


def _last_rounds(lines: list[dict[str, Any]]) -> Table:
    from proxyfl.core.text import in_words

    heads = ["round", "accuracy", "loss", "clients", "idle", "failed", "trusted", "of them correct", "sent"]
    table = plain_table(*heads, right=heads, keep=heads)
    for line in lines:
        pseudo, traffic = line.get("pseudo", {}), line["traffic"]
        losses = line.get("losses", {})
        table.add_row(
            str(line["round"]),
            _share(line.get("accuracy")),
            f"{sum(losses.values()):.3f}" if losses else "–",
            *(str(len(line.get(name, ()))) for name in ("clients", "idle", "failed")),
            _share(pseudo.get("selected_share")),
            _share(pseudo.get("selected_accuracy")),
            in_words(traffic["bytes_up"] + traffic["bytes_down"]),
        )
    return table


def _last_traffic(line: dict[str, Any]) -> Table:
    """What the last round sent, by part of the model."""
    from rich.text import Text

    from proxyfl.core.text import in_words

    traffic = line["traffic"]
    numbers = traffic.get("numbers", {})
    heads = [f"round {line['round']}", "numbers up", "bytes up", "numbers down", "bytes down"]
    table = plain_table(*heads, right=heads[1:], keep=heads)
    for part in traffic.get("down", ()):
        cells = [part]
        for way in ("up", "down"):
            count = numbers.get(way, {}).get(part)
            sent = in_words(traffic.get(way, {}).get(part, 0))
            cells += ["–" if count is None else f"{count:,}", sent]
        table.add_row(*map(Text, cells))
    return table


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _print_failures(lines: list[dict[str, Any]], console: Console, most: int = 10) -> None:
    failures = [
        (line["round"], client, why) for line in lines for client, why in line.get("failed", {}).items()
    ]
    if not failures:
        return
    console.print(f"\n[yellow]{len(failures)} client updates failed or were refused[/]")
    for round, client, why in failures[-most:]:
        text = f"  round {round}, client {client}: {' '.join(why.split())}"
        console.print(text, markup=False, soft_wrap=True)
    if len(failures) > most:
        console.print(f"  and {len(failures) - most} before these; see metrics.jsonl")


def _print_privacy(line: dict[str, Any], console: Console) -> None:
    """What the rounds so far have cost, where clients are kept private."""
    if cost := line.get("privacy"):
        console.print(
            f"\nprivacy: ε = {cost['epsilon']:.3g} at δ = {cost['delta']:g} after {line['round']} rounds, "
            "as long as nobody knows the noise and the sample"
        )
    if cost := line.get("record_privacy"):
        console.print(
            f"\nprivacy of single images: ε = {cost['epsilon']:.3g} at δ = {cost['delta']:g} for the most "
            f"exposed one, if its client took part in all {line['round']} rounds"
        )
