"""``proxyfl sweep`` and ``proxyfl compare``: many experiments, whatever of them is missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.board import Board
from proxyfl.cli.common import (
    INTERRUPTED,
    DataRoot,
    Protocol,
    Runs,
    Settings,
    command,
    err,
    examples,
    out,
    read_seeds,
    require_device,
)
from proxyfl.cli.engine import Address, EngineName, PerRun, chosen_engine
from proxyfl.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from proxyfl.engines.cluster.engine import RayEngine
    from proxyfl.runs.batch import Job
    from proxyfl.runs.sweep import Grid

SWEEP_EXAMPLES = examples("proxyfl sweep alpha.toml", "proxyfl sweep alpha.toml --runs runs/alpha --dry-run")
COMPARE_EXAMPLES = examples(
    "proxyfl compare fedavg,fixmatch-gpl,sage,proxyfl --data digits --alpha 0.1,1 --seeds 3",
    "proxyfl compare semifl,fixmatch-gpl,server-only --scenario server --seeds 3",
    "proxyfl compare proxyfl --vary method.tau=0.8,0.9,0.95 --seeds 11,12,13",
)

SideBySide = Annotated[
    int, typer.Option("--side-by-side", min=0, help="Runs at the same time.", show_default="one per core")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the runs without training.")]


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="The grid file, as described above.")],
    protocol: Protocol = "shared",
    runs: Runs = Path("runs"),
    data_root: DataRoot = None,
    side_by_side: SideBySide = 0,
    engine: EngineName = "workers",
    address: Address = None,
    per_run: PerRun = None,
    dry_run: DryRun = False,
) -> None:
    """Train the missing runs of a grid, on all cores.

    A grid names methods, data, seeds and the values of any setting:

    [bold]methods = \\["fedavg", "proxyfl"][/], [bold]data = "digits"[/], [bold]seeds = 3[/] (or a list),
    [bold]\\[vary][/] partition.alpha = \\[0.1, 1], [bold]\\[set][/] federation.rounds = 10.

    If it is stopped, the same command continues. A run that fails is reported and does not stop the others.
    """
    from proxyfl.runs.sweep import read_grid

    where = chosen_engine(engine, address, per_run, side_by_side or None, "--per-run")
    chosen = dataclasses.replace(read_grid(grid), protocol=protocol)
    work(chosen, runs, data_root, side_by_side, dry_run, where)


def compare(
    methods: Annotated[str, typer.Argument(metavar="METHODS", help="Comma-separated names.")],
    data: Annotated[str, typer.Option("--data", help="Presets.", metavar="NAME,NAME")] = "digits",
    alpha: Annotated[str, typer.Option("--alpha", metavar="A,B", help="Dirichlet concentrations.")] = "",
    label_ratio: Annotated[
        str, typer.Option("--label-ratio", metavar="A,B", help="Shares of images with a label.")
    ] = "",
    scenario: Annotated[
        str, typer.Option("--scenario", metavar="A,B", help="Who has labels: clients, server, partial.")
    ] = "",
    clients: Annotated[str, typer.Option("--clients", metavar="A,B", help="Registered clients.")] = "",
    width: Annotated[str, typer.Option("--width", metavar="A,B", help="Widths of the network.")] = "",
    subset: Annotated[
        str, typer.Option("--subset", metavar="A,B", help="Training images: shares up to 1, or counts.")
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="How many, or which: 11,12,13.")] = "1",
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Rounds.", show_default=False)] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=A,B", help="Any setting's values.", show_default=False),
    ] = None,
    set_: Settings = None,
    protocol: Protocol = "shared",
    runs: Runs = Path("runs"),
    data_root: DataRoot = None,
    side_by_side: SideBySide = 0,
    engine: EngineName = "workers",
    address: Address = None,
    per_run: PerRun = None,
    dry_run: DryRun = False,
) -> None:
    """Methods side by side, over several seeds and settings: a sweep without a file.

    Runs what is missing, skips what is done. `proxyfl table` shows the result.
    """
    from proxyfl.core.trees import dotted, merge, nested, parse_assignment
    from proxyfl.runs.sweep import Grid, require_distinct

    flags = (
        ("partition.alpha", "--alpha", alpha),
        ("labels.ratio", "--label-ratio", label_ratio),
        ("labels.where", "--scenario", scenario),
        ("partition.clients", "--clients", clients),
        ("model.width", "--width", width),
        ("data.subset", "--subset", subset),
    )
    said = [(key, f"{flag} {values}") for key, flag, values in flags if values]
    varied = {key: _listed(values) for key, _, values in flags if values}
    for assignment in vary or []:
        key, equals, values = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--vary '{assignment}' must be like method.tau=0.9,0.95")
        said.append((key.strip(), f"--vary {assignment}"))
        varied[key.strip()] = _listed(values)
    common = merge(*(parse_assignment(text) for text in set_ or []))
    said += [(key, f"--set {text}") for text in set_ or [] for key in dotted(parse_assignment(text))]
    if rounds:
        common = merge(common, nested({"federation.rounds": rounds}))
        said.append(("federation.rounds", f"--rounds {rounds}"))
    require_distinct(said)
    grid = Grid(_words(methods), _words(data), read_seeds(seeds), varied, common, protocol)
    where = chosen_engine(engine, address, per_run, side_by_side or None, "--per-run")
    work(grid, runs, data_root, side_by_side, dry_run, where)


def work(
    grid: Grid,
    runs: Path,
    data_root: Path | None,
    side_by_side: int,
    dry_run: bool,
    cluster: RayEngine | None = None,
) -> None:
    """Make what is missing and say how to look at it."""
    from proxyfl.runs.protocols import OWN, summary
    from proxyfl.runs.sweep import jobs_of

    jobs = jobs_of(grid, runs, data_root)
    if grid.protocol == OWN:
        for line in dict.fromkeys(summary(job.config) for job in jobs):
            err().print(line, markup=False, soft_wrap=True)
    make(jobs, side_by_side, dry_run, f"table      {command('table', runs)}", cluster)


def make(
    jobs: Sequence[Job],
    side_by_side: int,
    dry_run: bool,
    afterwards: str,
    cluster: RayEngine | None = None,
) -> None:
    """Train what is missing of the jobs, or list them; ``afterwards`` is called when it is done."""
    if dry_run:
        for job in jobs:
            state = "done " if job.finished else "to do"
            out().print(f"{state}  {job.name}  {job.path}", markup=False, soft_wrap=True)
        return
    for job in jobs:
        if not job.finished and cluster is None:  # whether a node has it, the node says
            require_device(job.config)
    failed = train_missing(jobs, side_by_side, cluster) if jobs else {}
    out().print(afterwards, markup=False, soft_wrap=True)
    if failed:
        raise RunError(f"{len(failed)} of {len(jobs)} runs failed; the same command tries them again")


def train_missing(
    jobs: Sequence[Job], side_by_side: int = 0, cluster: RayEngine | None = None
) -> dict[Path, str]:
    """Train what is not finished, with a live table. Ctrl-C keeps what is done."""
    from proxyfl.runs.batch import train_all

    missing = [job for job in jobs if not job.finished]
    err().print(f"{len(missing)} of {len(jobs)} runs to train")
    try:
        with Board(jobs) as board:
            if cluster is None:
                failed = train_all(missing, side_by_side, board.look) if missing else {}
            else:
                from proxyfl.runs.cluster import train_on_cluster

                failed = train_on_cluster(missing, cluster, board.look)
            board.look(failed)
    except KeyboardInterrupt as interrupt:
        typer.echo("stopped; finished work is kept, and the same command continues", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    return failed


def _words(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise ConfigError(f"'{text}' names nothing; write names separated by commas")
    return words


def _listed(text: str) -> list[Any]:
    """The values of a setting, as TOML reads them; bare words are text."""
    from proxyfl.core.trees import parse_assignment

    return [parse_assignment(f"value={word}")["value"] for word in _words(text)]
