"""Bars: following a run to its end (a line per round where there is no terminal), and any work in shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from proxyfl.cli.common import INTERRUPTED, command, err, out
from proxyfl.cli.present import summary_table
from proxyfl.core.text import duration

if TYPE_CHECKING:
    from proxyfl.core.config import Config
    from proxyfl.federation.loop import Observer
    from proxyfl.runs.run import Run


def train(
    path: Path,
    config: Config,
    go: Callable[[Sequence[Observer]], Run],
    *,
    before: Sequence[float | None] = (),
    log: Sequence[str] = (),
    quiet: bool = False,
) -> None:
    """Play the rounds while showing them, then the result. Ctrl-C says how to continue."""
    from proxyfl.runs.loggers import find_all
    from proxyfl.runs.progress import LiveProgress

    loggers = [tool(path, config) for tool in find_all(log)]
    try:
        with ExitStack() as stack:
            progress = LiveProgress(err(), config.federation.rounds, before, quiet=quiet)
            observers: list[Observer] = [stack.enter_context(progress)]
            observers += [stack.enter_context(logger) for logger in loggers]
            run = go(observers)
    except KeyboardInterrupt as interrupt:
        typer.echo(_stopped(path), err=True)
        raise typer.Exit(INTERRUPTED) from interrupt
    if quiet:
        typer.echo(str(run.path))
    else:
        tell_result(run)


def tell_result(run: Run, more: str = "") -> None:
    """The result of a finished run, where it is and what to do with it; ``eval`` may need ``more`` words."""
    console = out()
    console.print()
    console.print(summary_table(run.summary, run.config.keep.last_rounds))
    console.print()
    pace = run.summary.seconds / run.summary.rounds
    lines = [
        ("per round", f"{pace:.2f} s" if pace < 10 else duration(pace)),
        ("run", str(run.path)),
        ("curve", command("show", run.path)),
        ("per class", command("eval", run.path) + more),
    ]
    for name, text in lines:
        console.print(f"{name:11}{text}", markup=False, soft_wrap=True)


def _stopped(path: Path) -> str:
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.manifests import folders

    run = RunDirectory(path)
    if not run.path.exists() and not RunDirectory(run.aside).config.is_file():
        return "stopped before the run began; nothing was kept"
    saved: list[Any] = folders(run)
    done = int(saved[0].name.removeprefix("round-")) if saved else 0
    return f"stopped after round {done}; continue with: {command('resume', path)}"


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[str, float], None]]:
    """A bar for work that tells what it does and which share is done: gone at its end, and none unless stderr
    is a terminal.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    console = err()
    columns = (TextColumn(title), BarColumn(30), TextColumn("[dim]{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", total=1.0)
        yield lambda words, share: bars.update(bar, description=words, completed=share)
