"""``proxyfl demo``: three methods on scikit-learn's digits, side by side, with a table and pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import Settings, command, examples, load_settings, out, runs_folder
from proxyfl.cli.sweep import train_missing
from proxyfl.core.errors import RunError

if TYPE_CHECKING:
    from proxyfl.runs.batch import Job

METHODS = ("fedavg", "fixmatch-gpl", "proxyfl")
"""From the quickest to the slowest."""

LIST = "demo.json"
"""The names of the runs that the demo made in its folder: what ``--fresh`` may delete."""

EXAMPLES = examples(
    "proxyfl demo",
    "proxyfl demo --seeds 3 --first-seed 11 --markdown table.md",
    "proxyfl demo --rounds 5 --runs runs/quick",
)


def demo(
    runs: Annotated[
        Path | None,
        typer.Option("--runs", help="The folder for runs and pictures.", show_default="runs/demo"),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each method, one per seed.")] = 1,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first seed.")] = 1,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds.", show_default="the preset's")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again even if a run exists.")] = False,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the table to this file.", show_default=False)
    ] = None,
    settings: Settings = None,
) -> None:
    """Train FedAvg, FixMatch-GPL and ProxyFL on scikit-learn's digits and compare them.

    Ends with a table, accuracy curves and a figure of the data distribution.

    Finished runs are reused, and stopped runs are continued.
    """
    from proxyfl.report import plot_style

    plot_style.new_figure(1, 1)  # finds out now, not after training, whether pictures can be drawn
    folder = runs or runs_folder() / "demo"
    jobs = plan(folder, range(first_seed, first_seed + seeds), rounds, settings or [])
    claim(folder, jobs, fresh=fresh)
    if not all(job.finished for job in jobs):
        # The slowest first, so that no core waits for long.
        failed = train_missing(jobs[::-1])
        for path, reason in failed.items():
            raise RunError(f"{path}: {reason.strip().splitlines()[-1]}")
    words: list[object] = ["demo", "--seeds", seeds, "--first-seed", first_seed]
    words += ["--rounds", rounds] if rounds else []
    words += [word for assignment in settings or [] for word in ("--set", assignment)]
    _show(folder, jobs, markdown, command(*words))


def plan(folder: Path, seeds: Iterable[int], rounds: int | None, assignments: Sequence[str]) -> list[Job]:
    """The runs to make. A run's name holds a hash of its settings, so other settings make another run."""
    from proxyfl.runs.batch import Job
    from proxyfl.runs.settings import default_name

    jobs = []
    for seed in seeds:
        for method in METHODS:
            config = load_settings("digits", method, {"seed": seed, "rounds": rounds}, assignments)
            jobs.append(Job(f"{method} · seed {seed}", config, folder / default_name(config)))
    return jobs


def claim(folder: Path, jobs: Sequence[Job], *, fresh: bool) -> None:
    """Note which runs will be the demo's own; with ``fresh``, delete those that are."""
    from proxyfl.core.files import write_output
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.run import Run

    listed = folder / LIST
    own = _read_list(listed)
    there = [job for job in jobs if job.path.exists()]
    for job in there:
        if fresh and job.path.name not in own:
            raise RunError(f"{job.path} is not the demo's own and is kept; choose another folder with --runs")
        if not fresh and Run(job.path).config != job.config:
            raise RunError(f"{job.path} was made with other settings; train it again with --fresh")
    own |= {job.path.name for job in jobs if job not in there}
    write_output(listed, json.dumps({"runs": sorted(own)}, indent=1).encode())
    for job in there if fresh else []:
        with RunDirectory(job.path).require().locked():
            shutil.rmtree(job.path)


def _read_list(path: Path) -> set[str]:
    from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded

    try:
        return {str(name) for name in json.loads(read_bounded(path, JSON_SWELLS, SHORT))["runs"]}
    except FileNotFoundError:
        return set()
    except (RunError, ValueError, KeyError, TypeError, RecursionError):
        raise RunError(f"{path} is damaged; delete it, or choose another folder with --runs") from None


def _show(folder: Path, jobs: Sequence[Job], markdown: Path | None, made_by: str) -> None:
    """The table, the pictures, and where things are."""
    from proxyfl.core.files import write_output
    from proxyfl.report.bubbles import partition_bubbles
    from proxyfl.report.curves import accuracy_curves
    from proxyfl.results.formats import to_markdown, to_rich
    from proxyfl.results.panels import summary_panel
    from proxyfl.runs.run import Run

    runs = {method: [Run(job.path) for job in jobs if job.config.method.name == method] for method in METHODS}
    config = jobs[0].config
    title = (
        f"Test accuracy on digits: {config.partition.clients} clients, alpha = {config.partition.alpha:g}, "
        f"{100 * config.labels.ratio:g} % labels"
    )
    curves, *_ = accuracy_curves(runs, folder / "accuracy", title)
    bubbles, *_ = partition_bubbles(runs[METHODS[-1]][0], folder / "partition")
    console = out()
    console.print()
    console.print(to_rich([summary_panel(runs, short=True)], console.width))
    console.print()
    places = [("curves", f"{curves} (also .svg, .csv)"), ("partition", f"{bubbles} (also .svg, .csv)")]
    if markdown:
        text = to_markdown([summary_panel(runs, short=False)], made_by)
        places.append(("table", str(write_output(markdown, text.encode()))))
    places += [("runs", command("ls", folder)), ("one run", command("show", jobs[-1].path))]
    for name, place in places:
        console.print(f"{name:11}{place}", markup=False, soft_wrap=True)
