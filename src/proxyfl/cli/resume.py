"""``proxyfl resume``: go on with a run that was stopped, however it was stopped."""

from __future__ import annotations

from pathlib import Path

import typer

from proxyfl.cli.common import (
    DataRoot,
    Log,
    Quiet,
    RunName,
    Workers,
    examples,
    find_run,
    is_run,
    require_device,
)
from proxyfl.cli.progress import tell_result, train
from proxyfl.core.errors import ConfigError

EXAMPLES = examples(
    "proxyfl resume runs/digits-proxyfl-seed1-4b2c91",
    "proxyfl resume digits-proxyfl-seed1-4b2c91 --data-root /elsewhere",
)


def resume(
    run: RunName,
    workers: Workers = None,
    data_root: DataRoot = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut: the result is the same to the bit.

    A finished run says so and is left as it is.
    """
    from proxyfl.runs.checkpoint import load_newest
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.experiment import resume as go_on
    from proxyfl.runs.repair import is_whole, require_same_config
    from proxyfl.runs.run import Run
    from proxyfl.runs.settings import recorded

    path = find_run(run, lambda place: is_run(place) or _creation_cut_short(place))
    directory = RunDirectory(path)
    before: list[float | None] = []
    if path.exists():
        directory.require()
        opened = Run(path)
        try:
            config = opened.config
        except ConfigError:
            require_same_config(directory, load_newest(directory)[0])
            raise
        before = [line.get("accuracy") for line in opened.lines]
        if opened.finished and is_whole(directory, load_newest(directory)[0]):
            _tell_finished(path, quiet)
            return
    else:
        config = recorded(RunDirectory(directory.aside).config)
    require_device(config)
    train(
        path,
        config,
        lambda observers: go_on(path, observers, data_root, workers),
        before=before,
        log=log or (),
        quiet=quiet,
    )


def _creation_cut_short(path: Path) -> bool:
    """Whether there is only what was built aside; its config is enough to begin again."""
    from proxyfl.runs.directory import RunDirectory

    return not path.exists() and RunDirectory(RunDirectory(path).aside).config.is_file()


def _tell_finished(path: Path, quiet: bool) -> None:
    from proxyfl.runs.run import Run

    if quiet:
        typer.echo(str(path))
        return
    run = Run(path)
    typer.echo(f"{path} is finished: {run.summary.rounds} of {run.config.federation.rounds} rounds")
    tell_result(run)
