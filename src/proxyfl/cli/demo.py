"""``proxyfl demo``: three methods on scikit-learn's digits, side by side, with a table and pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from proxyfl.cli.common import INTERRUPTED, command, err, examples, load_settings, out, runs_folder
from proxyfl.cli.present import percent
from proxyfl.core.errors import RunError

if TYPE_CHECKING:
    from proxyfl.runs.batch import Job

METHODS = ("fedavg", "fixmatch-gpl", "proxyfl")
"""From the quickest to the slowest; they are started the other way round, so that no core waits for long."""

LEDGER = "demo.json"
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
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again what is there already.")] = False,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table to this file, too.", show_default=False)
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", hidden=True)] = None,
) -> None:
    """Train FedAvg, FixMatch-GPL and ProxyFL on scikit-learn's digits and compare them.

    Ends with a table, accuracy curves and a picture of who holds what.

    Runs that are there already are used again, those that were stopped go on.
    """
    from proxyfl.report import style

    style.new_figure(1, 1)  # finds out now, not after training, whether pictures can be drawn
    folder = runs or runs_folder() / "demo"
    jobs = plan(folder, range(first_seed, first_seed + seeds), rounds, settings or [])
    claim(folder, jobs, fresh=fresh)
    try:
        _train(jobs)
    except KeyboardInterrupt as interrupt:
        typer.echo("stopped; what is done is kept, the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
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
            jobs.append(Job(method, config, folder / default_name(config)))
    return jobs


def claim(folder: Path, jobs: Sequence[Job], *, fresh: bool) -> None:
    """Note which runs will be the demo's own; with ``fresh``, delete those that are."""
    from proxyfl.report.style import write
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.run import Run

    ledger = folder / LEDGER
    own = _read_ledger(ledger)
    there = [job for job in jobs if job.path.exists()]
    for job in there:
        if fresh and job.path.name not in own:
            raise RunError(f"{job.path} is not the demo's own and is kept; choose another folder with --runs")
        if not fresh and Run(job.path).config != job.config:
            raise RunError(f"{job.path} was made with other settings; train it again with --fresh")
    own |= {job.path.name for job in jobs if job not in there}
    write(ledger, json.dumps({"runs": sorted(own)}, indent=1).encode())
    for job in there if fresh else []:
        with RunDirectory(job.path).require().locked():
            shutil.rmtree(job.path)


def _read_ledger(path: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(path.read_text(encoding="utf-8"))["runs"]}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged; delete it, or choose another folder with --runs") from None


def _train(jobs: Sequence[Job]) -> None:
    from proxyfl.engines.pool import usable_cores
    from proxyfl.runs.batch import train_all
    from proxyfl.runs.run import Run

    missing = [job for job in reversed(jobs) if not (job.path.exists() and Run(job.path).finished)]
    if missing:
        workers = min(usable_cores(), len(missing))
        err().print(f"{len(missing)} of {len(jobs)} runs to train, {workers} at a time")
        with Bars(jobs) as bars:
            train_all(missing, workers, bars.look)


@dataclass(frozen=True)
class Seen:
    """How far a run was when it was last looked at; ``size`` is that of its metrics file."""

    size: int = 0
    rounds: int = 0
    accuracy: float = 0.0


class Bars:
    """A bar per method, moved by what its runs have written; where there is no terminal, a line per run."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.jobs = jobs
        self.seen = {job.path: _look_at(job.path, Seen()) for job in jobs}
        self.console = err()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("[green]{task.fields[state]}"), TimeRemainingColumn(),
            console=self.console, speed_estimate_period=120, disable=not self.console.is_terminal,
        )  # fmt: skip
        totals = {method: sum(job.rounds for job in jobs if job.method == method) for method in METHODS}
        self.tasks = {
            method: self.progress.add_task(method, total=total, state="", completed=self._state(method)[0])
            for method, total in totals.items()
        }

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def look(self) -> None:
        """Read what is new."""
        for job in self.jobs:
            before, now = self.seen[job.path], _look_at(job.path, self.seen[job.path])
            self.seen[job.path] = now
            if self.progress.disable and before.rounds < now.rounds == job.rounds:
                self.console.print(f"{job.path.name} finished: accuracy {percent(now.accuracy)}")
        for method, task in self.tasks.items():
            rounds, state = self._state(method)
            self.progress.update(task, completed=rounds, state=state)

    def _state(self, method: str) -> tuple[int, str]:
        """Rounds played, and the accuracy now: the mean over the seeds that have begun."""
        seen = [self.seen[job.path] for job in self.jobs if job.method == method]
        begun = [each.accuracy for each in seen if each.rounds]
        state = f"accuracy {percent(sum(begun) / len(begun))}" if begun else "waiting"
        return sum(each.rounds for each in seen), state


def _look_at(path: Path, before: Seen) -> Seen:
    from proxyfl.runs.directory import RunDirectory, read_json_lines

    metrics = RunDirectory(path).metrics
    size = metrics.stat().st_size if metrics.exists() else 0
    if size == before.size:
        return before
    lines = read_json_lines(metrics)
    return Seen(size, len(lines), lines[-1]["accuracy"] if lines else 0.0)


def _show(folder: Path, jobs: Sequence[Job], markdown: Path | None, made_by: str) -> None:
    """The table, the pictures, and where things are."""
    from proxyfl.report.bubbles import partition_bubbles
    from proxyfl.report.curves import accuracy_curves
    from proxyfl.report.style import write
    from proxyfl.report.tables import caption, summary_rows, to_markdown, to_rich
    from proxyfl.runs.run import Run

    runs = {method: [Run(job.path) for job in jobs if job.method == method] for method in METHODS}
    rows = summary_rows(runs)
    config = jobs[0].config
    title = (
        f"Test accuracy on digits: {config.partition.clients} clients, alpha = {config.partition.alpha:g}, "
        f"{100 * config.labels.ratio:g} % labels"
    )
    curves, *_ = accuracy_curves(runs, folder / "accuracy", title)
    bubbles, *_ = partition_bubbles(runs[METHODS[-1]][0], folder / "partition")
    console = out()
    console.print()
    console.print(to_rich(rows))
    console.print(caption(rows), style="dim")
    console.print()
    places = [("curves", f"{curves} (also .svg, .csv)"), ("partition", f"{bubbles} (also .svg, .csv)")]
    if markdown:
        text = f"<!-- {made_by} -->\n\n{to_markdown(rows)}\n{caption(rows)}\n"
        places.append(("table", str(write(markdown, text.encode()))))
    places += [("runs", command("ls", folder)), ("one run", command("show", jobs[-1].path))]
    for name, place in places:
        console.print(f"{name:11}{place}", markup=False, soft_wrap=True)
