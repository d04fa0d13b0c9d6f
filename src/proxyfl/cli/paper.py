"""``proxyfl paper``: the paper's tables and figures by name; what they need, making it, showing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli import table as shown
from proxyfl.cli.common import DataRoot, command, err, examples, out, plain_table, read_seeds, runs_folder
from proxyfl.cli.progress import share_bar
from proxyfl.cli.sweep import DryRun, SideBySide, make
from proxyfl.cli.table import SUFFIXES, Accuracy, Form, Format
from proxyfl.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from proxyfl.paper.items import Item
    from proxyfl.paper.plan import Case
    from proxyfl.paper.scales import Scale

LS_EXAMPLES = examples("proxyfl paper ls", "proxyfl paper ls --scale full")
RUN_EXAMPLES = examples(
    "proxyfl paper run table2 --scale micro",
    "proxyfl paper run table1 --scale mini --only data=cifar10,alpha=0.1 --seeds 3",
)
SHOW_EXAMPLES = examples(
    "proxyfl paper show table2 --scale mini",
    "proxyfl paper show table2 --output table2.tex",
    "proxyfl paper show fig5b --output pictures/convergence",
)
EXPORT_EXAMPLES = examples("proxyfl paper export table2 --scale mini --output results/mini-table2.csv")

RESULTS = Path("results")
FILE_WIDTH = 100
"""Columns of a table that goes to a file as on a terminal."""

app = typer.Typer(no_args_is_help=True, help="The paper's tables and figures: list, run, show, export.")


class ScaleName(StrEnum):
    full = "full"
    mini = "mini"
    micro = "micro"


ItemName = Annotated[
    str, typer.Argument(metavar="ITEM", help="table1 to table9, fig1b to fig7.", show_default=False)
]
AtScale = Annotated[
    ScaleName,
    typer.Option("--scale", help="full: the paper's protocol; mini: for two cores; micro: seconds."),
]
Seeds = Annotated[
    str,
    typer.Option("--seeds", help="How many, or which: 11,12,13.", show_default="3, micro 1"),
]
Only = Annotated[
    str,
    typer.Option(
        metavar="KEY=VALUE,…",
        help="A part: data=cifar10,alpha=0.1; also method=, row=. Repeating a key allows either value.",
        show_default=False,
    ),
]
PaperRuns = Annotated[
    Path | None,
    typer.Option("--runs", help="Where runs are kept.", show_default="paper-SCALE in the runs folder"),
]
Recorded = Annotated[
    Path,
    typer.Option(
        "--results",
        help="Exported tables: runs in them count as done.",
        show_default="results, if it is there",
    ),
]
Device = Annotated[str, typer.Option("--device", help="Device for training: cpu, cuda, mps.")]


@app.command(epilog=LS_EXAMPLES)
def ls(
    scale: AtScale = ScaleName.mini,
    seeds: Seeds = "",
    runs: PaperRuns = None,
    results: Recorded = RESULTS,
    data_root: DataRoot = None,
    device: Device = "cpu",
) -> None:
    """Every table and figure: how many runs it needs, how many are done, and how long the rest would take."""
    from proxyfl.core import kept
    from proxyfl.core.machine import usable_cores
    from proxyfl.paper import catalogue

    size, folder, numbers = _place(scale, runs, seeds)

    def count() -> object:
        with share_bar("counting runs") as step:
            from proxyfl.paper.cost import overview

            return overview(size.name, numbers, folder, results, data_root, device, step)

    words = size.name, numbers, str(folder.resolve()), str(results.resolve()), str(data_root), device
    state = kept.state_of(folder, results)
    rows, (total, done, rest, source), data = kept.fact(count, "paper ls", *words, state=state)
    right = ("runs", "done", "rest")
    table = plain_table("item", "what", *right, "source", right=right, keep=("item", *right, "source"))
    for name, each in catalogue.ITEMS.items():
        table.add_row(name, each.title, *rows.get(name, ["", "", "", each.shows]))
    console = out()
    console.print(
        f"scale {size.name}: {size.title}; seeds {', '.join(map(str, numbers))}; runs in {folder}",
        markup=False,
        soft_wrap=True,
    )
    console.print(table)
    left = f"; the rest {rest} of one core ({source}), {usable_cores()} runs at once" if rest else ""
    console.print(f"all: {total} runs, shared between items, {done} done{left}", markup=False, soft_wrap=True)
    _note_absent(data, data_root)


@app.command(epilog=RUN_EXAMPLES)
def run(
    item: ItemName,
    scale: AtScale = ScaleName.mini,
    seeds: Seeds = "",
    only: Only = "",
    runs: PaperRuns = None,
    results: Recorded = RESULTS,
    data_root: DataRoot = None,
    device: Device = "cpu",
    side_by_side: SideBySide = 0,
    dry_run: DryRun = False,
) -> None:
    """Train the missing runs of a table or figure. If it is stopped, the same command continues."""
    from proxyfl.paper import plan
    from proxyfl.paper.results import recorded

    size, folder, numbers = _place(scale, runs, seeds)
    found, wanted = _wanted(item, size, only, device)
    missing = _note_absent(map(plan.data_of, wanted), data_root)
    there = [case for case in wanted if dry_run or plan.data_of(case) not in missing]
    if wanted and not there and not dry_run:
        raise RunError(f"{found.name} needs data that is not available; see the notes above")
    known = recorded(results)
    missing_runs = [job for job in plan.jobs(there, numbers, folder, data_root, known) if not job.finished]
    if starts := plan.starts(there, missing_runs, folder, data_root, known):
        make(starts, side_by_side, dry_run, "creating common starting weights")
    make(
        plan.jobs(there, numbers, folder, data_root, known),
        side_by_side,
        dry_run,
        f"look       {_again('show')}",
    )


@app.command(epilog=SHOW_EXAMPLES)
def show(
    item: ItemName,
    scale: AtScale = ScaleName.mini,
    seeds: Seeds = "",
    only: Only = "",
    metric: Annotated[
        Accuracy, typer.Option(metavar="METRIC", help="The accuracy to report: mean-last, last or best.")
    ] = Accuracy.mean_last,
    form: Form = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the table, or the figure as PNG, SVG and CSV.",
            show_default="figures: in the folder of the runs",
        ),
    ] = None,
    runs: PaperRuns = None,
    results: Recorded = RESULTS,
    data_root: DataRoot = None,
    device: Device = "cpu",
) -> None:
    """Our results beside the published ones, with the difference; figures are drawn."""
    from proxyfl.paper import plan
    from proxyfl.paper.differences import differences
    from proxyfl.paper.figures.draw import draw
    from proxyfl.paper.results import gather, recorded
    from proxyfl.paper.tables import tables
    from proxyfl.results.formats import to_csv

    size, folder, numbers = _place(scale, runs, seeds)
    found, wanted = _wanted(item, size, only, device)
    columns = plan.columns(found, size, plan.read_choice(only, size))
    form = form or SUFFIXES.get(file.suffix if file and not found.picture else "", Format.terminal)
    found_results = gather(wanted, numbers, folder, recorded(results))
    chosen = plan.part(found, wanted)
    panels = tables(chosen, size, found_results, columns, metric)
    if form is not Format.csv:  # which holds the numbers of which the rest is made
        panels += differences(chosen, size, found_results, columns, metric)
    if panels:
        csv = to_csv(panels, item=found.name, scale=size.name) if form is Format.csv else ""
        place = None if found.picture else file
        shown.show(panels, form, place, _again("show"), csv=csv, width=FILE_WIDTH, warning=size.warning)
    if found.picture:
        numbers = _reported(numbers)
        path = file or folder / "figures" / found.name
        for made in draw(found, size, wanted, columns, numbers, folder, path, data_root):
            err().print(f"figure     {made}", markup=False, soft_wrap=True)
    if found.rows and not found_results:
        err().print(
            f"note: no finished run of these in {folder}; train some with: {_again('run')}",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip


@app.command(epilog=EXPORT_EXAMPLES)
def export(
    item: ItemName,
    scale: AtScale = ScaleName.mini,
    seeds: Seeds = "",
    only: Only = "",
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.csv", help="The file.", show_default="print it"),
    ] = None,
    runs: PaperRuns = None,
    results: Recorded = RESULTS,
    device: Device = "cpu",
) -> None:
    """One CSV row per finished run: settings, seed, accuracy after each round, identity and commit.

    Weights that runs started from are kept beside the file.
    """
    from proxyfl.core.files import write_output
    from proxyfl.paper.results import gather, keep_starts, recorded, to_csv

    size, folder, numbers = _place(scale, runs, seeds)
    found, wanted = _wanted(item, size, only, device)
    if not found.rows:
        raise ConfigError(f"{found.name} needs no runs; '{_again('show')}' shows it")
    gathered = gather(wanted, _reported(numbers), folder, recorded(results))
    if not gathered:
        raise RunError(f"{found.name} has no finished run in {folder}; train some with '{_again('run')}'")
    text = to_csv(gathered)
    if file is None:
        typer.echo(text, nl=False)
    else:
        out().print(f"results    {write_output(file, text.encode())}", markup=False, soft_wrap=True)
        for kept in keep_starts(gathered, wanted, _reported(numbers), folder, file.parent):
            out().print(f"start      {kept}", markup=False, soft_wrap=True)


def _place(scale: ScaleName, runs: Path | None, seeds: str) -> tuple[Scale, Path, Sequence[int]]:
    """The scale, where its runs are kept, and the seeds."""
    from proxyfl.paper.scales import scale as named

    size = named(scale)
    numbers = read_seeds(seeds or str(size.seeds))
    return size, runs or runs_folder() / f"paper-{size.name}", numbers


def _wanted(name: str, size: Scale, only: str, device: str) -> tuple[Item, list[Case]]:
    from proxyfl.paper import catalogue, plan
    from proxyfl.paper.scales import NAMES
    from proxyfl.paper.scales import scale as named

    found, choice = catalogue.item(name), plan.read_choice(only, size)
    plan.check_choice(found, choice)
    wanted = plan.cases(found, size, choice, device)
    if choice and not (wanted if found.rows else plan.columns(found, size, choice)):
        there = [f"data={each.data},alpha={each.alpha:g}" for each in plan.columns(found, size)]
        hint = f"it has {'; '.join(there)}" if there else "it has no parts"
        raise ConfigError(f"--only {only} selects nothing of {name}; {hint}")
    if found.rows and not wanted:
        scales = ", ".join(each for each in NAMES if plan.cases(found, named(each)))
        raise ConfigError(f"{name} has no runs at scale {size.name}; choose --scale {scales}")
    return found, wanted


def _reported(seeds: Sequence[int]) -> list[int]:
    """Without the seeds on which protocols were chosen."""
    from proxyfl.paper.scales import TUNING_SEEDS

    kept = [seed for seed in seeds if seed not in TUNING_SEEDS]
    if len(kept) < len(seeds):
        err().print("note: seeds that were used to choose protocols are not reported", style="yellow")
    return kept


def _note_absent(names: Iterable[str], data_root: Path | None) -> dict[str, str]:
    """Say which data sets are not at hand, and how to get them."""
    from proxyfl.data import sources

    missing = sources.absent(names, data_root)
    for name, cure in missing.items():
        err().print(
            f"note: {name} is not available, its runs are skipped; get it with: {cure}",
            style="yellow", markup=False, soft_wrap=True,
        )  # fmt: skip
    return missing


AGAIN = {
    "seeds": "--seeds", "only": "--only", "metric": "--metric", "runs": "--runs", "results": "--results",
    "data_root": "--data-root", "device": "--device",
}  # fmt: skip
"""Options that another verb takes as well, by parameter."""


def _again(verb: str) -> str:
    """The command that does ``verb`` with what this one was given."""
    import click

    context = click.get_current_context()
    given, usual = context.params, {each.name: each.default for each in context.command.params}
    words: list[object] = ["paper", verb, given["item"], "--scale", given["scale"]]
    for name, flag in AGAIN.items():
        if given.get(name) not in (None, "", usual.get(name)):
            words += [flag, given[name]]
    return command(*words)
