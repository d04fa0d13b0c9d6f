"""``proxyfl deploy rotate``, ``backup``, ``restore``, ``prune``: what keeps a federation going for years."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from proxyfl.cli.common import command, err, examples, out
from proxyfl.cli.deploy_life import require_flower
from proxyfl.cli.deploy_scaffold import Folder
from proxyfl.cli.deploy_trust import SiteFolder
from proxyfl.core.errors import ConfigError

ROTATE_EXAMPLES = examples(
    "proxyfl deploy rotate DIR --site lyon",
    "proxyfl deploy rotate DIR --ca",
    "proxyfl deploy rotate DIR --ca --finish",
)
BACKUP_EXAMPLES = examples("proxyfl deploy backup DIR trial.tar", "proxyfl deploy backup site-03 site-03.tar")
RESTORE_EXAMPLES = examples("proxyfl deploy restore trial.tar DIR")
PRUNE_EXAMPLES = examples("proxyfl deploy prune site-03", "proxyfl deploy prune site-03 --yes")


def rotate(
    folder: Folder,
    site: Annotated[str, typer.Option(metavar="NAME", help="Give this site a new key.")] = "",
    days: Annotated[
        float | None,
        typer.Option(
            help="With --site: how many days the previous key is still accepted, at most 365.",
            show_default="14",
        ),
    ] = None,
    ca: Annotated[
        bool,
        typer.Option(
            "--ca", help="Introduce a new certificate authority, trusted in addition to the current one."
        ),
    ] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Stop trusting the previous authority.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Finish even if some sites do not have the new authority yet.")
    ] = False,
) -> None:
    """Replace a site's key or the certificate authority, with an overlap so that no site is locked out.

    For a key that was stolen, see --new-key of 'proxyfl deploy init', which has no overlap.
    """
    require_flower()
    from proxyfl.deploy import operate, rotation
    from proxyfl.deploy.settings import Deployment

    if bool(site) == ca or (finish and not ca) or (force and not finish):
        raise ConfigError("specify what to replace: --site NAME, or --ca; --finish and --force go with --ca")
    if ca and days is not None:
        raise ConfigError(
            "--days goes with --site NAME; leave it out: the previous CA is trusted until --ca --finish"
        )
    days = rotation.DAYS if days is None else days
    if ca:
        said = rotation.finish_authority(folder, force=force) if finish else rotation.begin_authority(folder)
        for line in said:
            out().print(line, markup=False, soft_wrap=True)
        return
    changed = rotation.rotate_site(folder, site, days)
    deployment = Deployment.read(folder)
    if operate.answers(deployment):
        operate.register(deployment, operate.flower_home(deployment))
    out().print(
        f"{site} has a new key; send it {changed.private_key}, {changed.public_key} and "
        f"{changed.certificate}. Its former key is admitted until the new one is used, at most for {days:g} "
        "days",
        markup=False,
        soft_wrap=True,
    )


def backup(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A deployment's or a site's folder.", show_default=False)
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)],
) -> None:
    """Write a stopped server or site to one file, including its keys. Keep the file private."""
    require_flower()
    from proxyfl.deploy import backup as keeping

    with _bytes("backing up", keeping.size_of(folder)) as step:
        count = keeping.back_up(folder, file, step)
    out().print(f"wrote {count:,} files to {file}; it holds keys: keep it private", markup=False)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The back-up.", show_default=False)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder.", show_default=False)],
) -> None:
    """Restore a back-up to a new folder, on this or another machine, and check the hash of every file."""
    require_flower()
    from proxyfl.deploy import backup as keeping

    size = file.stat().st_size if file.is_file() else 0
    with _bytes("restoring", size) as step:
        kind, notes = keeping.restore(file, folder, step)
    out().print(f"restored the {kind} to {folder}", markup=False, soft_wrap=True)
    for note in notes:
        out().print(f"note: {note}", markup=False, soft_wrap=True)
    words = ("server", folder) if kind == "server" else ("site", folder, "--data", "DATA")
    out().print(f"start it with: {command('deploy', *words)}", markup=False, soft_wrap=True)


@contextmanager
def _bytes(what: str, total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import Progress

    with Progress(console=err(), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda more: progress.advance(task, more)


def prune(
    folder: SiteFolder,
    keep: Annotated[int, typer.Option(help="How many of the latest runs to keep.", min=1)] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what a site keeps for earlier runs, which it can then no longer continue; the latest is kept."""
    require_flower()
    from datetime import datetime

    from proxyfl.core.text import in_words
    from proxyfl.deploy import pruning
    from proxyfl.deploy.settings import Site

    site = Site.read(folder)
    old = pruning.kept_runs(site)[keep:]
    if not old:
        out().print(f"{site.name} keeps nothing for earlier runs", markup=False)
        return
    for one in old:
        when = datetime.fromtimestamp(one.last).isoformat(" ", "minutes")
        out().print(f"run {one.folder.name}: {one.size}, last used {when}", markup=False)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("no terminal to ask on; use --yes to remove what is shown")
        if not typer.confirm("Remove it?"):
            raise typer.Exit(1)
    freed = pruning.prune(site, old)
    out().print(f"removed; {in_words(freed)} are free", markup=False)
