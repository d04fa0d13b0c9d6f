"""``proxyfl resume``: go on with a run that was stopped, however it was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from proxyfl.cli.engine import Address, EngineName, PerClient, chosen_engine
from proxyfl.cli.progress import tell_result, train
from proxyfl.core.errors import ConfigError
from proxyfl.engines.forkserver import start_early

if TYPE_CHECKING:
    from proxyfl.engines.cluster.engine import RayEngine

EXAMPLES = examples(
    "proxyfl resume runs/digits-proxyfl-seed1-4b2c91",
    "proxyfl resume digits-proxyfl-seed1-4b2c91 --data-root /elsewhere",
    "proxyfl resume digits-proxyfl-seed1-4b2c91 --rounds 40",
)


def resume(
    run: RunName,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", min=1, help="Extend the run to this many rounds in total.", show_default=False
        ),
    ] = None,
    workers: Workers = None,
    engine: EngineName = "workers",
    address: Address = None,
    per_client: PerClient = None,
    data_root: DataRoot = None,
    log: Log = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Refuse where the last bits may differ, from here on or already.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run after Ctrl-C, a crash or a power cut; the result is bit-identical.

    A finished run is left unchanged, unless --rounds extends it: it then continues as if it had been started
    with that number. Settings that depend on the number of rounds, such as a cosine schedule, are reported.
    """
    where = chosen_engine(engine, address, per_client, workers)
    path = find_run(run, lambda place: is_run(place) or creation_cut_short(place))
    if where is None:
        start_early(workers)
    go_on(path, rounds, workers, data_root, log or (), quiet, where, exact)


def go_on(
    path: Path,
    rounds: int | None,
    workers: int | None,
    data_root: Path | None,
    log: Sequence[str],
    quiet: bool,
    engine: RayEngine | None = None,
    exact: bool = False,
) -> None:
    """Continue the run at a place and show it."""
    from proxyfl.runs.checkpoint import load_newest
    from proxyfl.runs.config_file import recorded
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.experiment import resume as play_on
    from proxyfl.runs.extend import lengthened
    from proxyfl.runs.repair import is_whole, require_same_config
    from proxyfl.runs.run import Run

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
        more = rounds is not None and rounds != config.federation.rounds
        if opened.finished and not more and is_whole(directory, load_newest(directory)[0]):
            _tell_finished(path, quiet)
            return
    else:
        config = recorded(RunDirectory(directory.aside).config)
    config = lengthened(config, rounds, str(path)) if rounds else config
    require_device(config)
    train(
        path,
        config,
        lambda observers: play_on(
            path, observers, data_root, workers, engine=engine, rounds=rounds, exact=exact
        ),
        before=before,
        log=log,
        quiet=quiet,
    )


def creation_cut_short(path: Path) -> bool:
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
