"""``proxyfl deploy``: real federations on Flower, for those who run them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli import deploy_life, deploy_look, deploy_scaffold
from proxyfl.cli.common import INTERRUPTED, Quiet, command, err, examples, out, plain_table
from proxyfl.cli.deploy_life import end_on_signals, require_flower, show
from proxyfl.cli.deploy_scaffold import Folder
from proxyfl.core.errors import RunError

if TYPE_CHECKING:
    from proxyfl.deploy.settings import Deployment, Site

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Real federations on Flower: set up, server, sites, run, status, stop.",
    epilog=examples(
        "proxyfl deploy server DIR",
        "proxyfl deploy site DIR/site-03 --data ~/images",
        "proxyfl deploy run DIR",
        "proxyfl deploy status DIR",
    ),
)

app.command(epilog=deploy_scaffold.INIT_EXAMPLES)(deploy_scaffold.init)
app.command(epilog=deploy_look.EXPLAIN_EXAMPLES)(deploy_look.explain)
app.command(epilog=deploy_look.CHECK_EXAMPLES)(deploy_look.check)
app.command(epilog=examples("proxyfl deploy attach DIR"))(deploy_life.attach)
app.command(epilog=examples("proxyfl deploy stop DIR", "proxyfl deploy stop DIR --now"))(deploy_life.stop)
app.command(epilog=examples("proxyfl deploy remove-site DIR lyon"))(deploy_life.remove_site)


@app.command(epilog=examples("proxyfl deploy server DIR"))
def server(folder: Folder) -> None:
    """Run the federation's server: Flower's SuperLink, and before it the gate that lets sites in.

    It stays until Ctrl-C. After a crash start it again: sites come back by themselves.
    """
    require_flower()
    from proxyfl.deploy import signing, supervise
    from proxyfl.deploy.settings import Deployment

    deployment = Deployment.read(folder)
    _warn_insecure(deployment)
    end_on_signals("SIGTERM", "SIGHUP")

    def ready() -> None:
        _tell(f"server ready at {deployment.address}; start the run with: {command('deploy', 'run', folder)}")
        if not deployment.insecure:
            _tell(signing.told_by(deployment))

    _tell(f"the server of {deployment.name} is starting")
    supervise.serve(deployment, _tell, ready)


@app.command(
    epilog=examples(
        "proxyfl deploy site site-03 --data ~/images",
        "proxyfl deploy site site-03 --data images.npz --server 10.0.0.5:8000",
    )
)
def site(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR/SITE", help="The site's folder, as it was handed out.")
    ],
    data: Annotated[Path, typer.Option(help="This site's images: a folder, an npz file, a CSV of labels.")],
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the server is.", show_default="as in site.toml")
    ] = "",
) -> None:
    """Take part with this machine's images: Flower's SuperNode, which computes what the server asks for.

    It stays until Ctrl-C and connects again whenever the server is away.
    """
    require_flower()
    from proxyfl.deploy import supervise
    from proxyfl.deploy.settings import Site

    settings = Site.read(folder)
    _warn_insecure(settings)
    end_on_signals("SIGTERM", "SIGHUP")
    supervise.take_part(settings, data, _tell, server)


@app.command(epilog=examples("proxyfl deploy run DIR", "proxyfl deploy run DIR --detach"))
def run(
    folder: Folder,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and leave it to the server.")] = False,
    enrol_again: Annotated[
        bool, typer.Option("--enrol-again", help="Let every site count its images again first.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Start the run, or go on with it from its last checkpoint, and show it.

    Ctrl-C stops it with the checkpoint kept; the same command continues it.
    """
    require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.enrolment import forget_counts
    from proxyfl.deploy.removal import settle
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.status import is_finished
    from proxyfl.deploy.stopping import clear_stop

    deployment = Deployment.read(folder)
    if operate.is_running(deployment):
        raise RunError(
            f"{deployment.run} is running; look at it with '{command('deploy', 'status', folder)}'"
        )
    if is_finished(deployment):
        another = f"{deployment.run} is finished; results: {command('show', deployment.run)}"
        raise RunError(
            f"{another}; for another run move that folder away, change what you like in [experiment] of "
            f"{deployment.file} (rounds is in [experiment.federation]) and give this command again"
        )
    operate.require_server(deployment, _tell)
    deployment, changes = settle(deployment)
    for change in changes:
        _tell(change)
    if enrol_again:
        forget_counts(deployment.run)
    clear_stop(deployment)
    number = operate.submit(deployment)
    if detach:
        _tell(f"run {number} started; look at it with: {command('deploy', 'status', folder)}")
        return
    end_on_signals("SIGTERM")
    try:
        show(deployment, operate.follow(deployment, number), quiet)
    except KeyboardInterrupt as interrupt:
        operate.stop(deployment)
        typer.echo(f"stopped; continue with: {command('deploy', 'run', folder)}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt


@app.command(epilog=examples("proxyfl deploy status DIR"))
def status(folder: Folder) -> None:
    """Is the server up, which sites are connected, how far is the run."""
    require_flower()
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.status import look

    deployment = Deployment.read(folder)
    found = look(deployment)
    console = out()
    console.print(f"{deployment.name}: server {found.server} at {deployment.address}", markup=False)
    table = plain_table(
        "site", "node", "labelled", "unlabelled", "rounds", right=("labelled", "unlabelled", "rounds")
    )
    for row in found.sites:
        table.add_row(*row)
    console.print(table)
    console.print(found.run, markup=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _tell(text: str) -> None:
    err().print(text, markup=False, soft_wrap=True)


def _warn_insecure(settings: Deployment | Site) -> None:
    if settings.insecure:
        err().print(
            "WARNING: this federation is insecure: no encryption, no authentication. Anyone who reaches the "
            "port can read and change models and run code. Only for trying out on one machine.",
            style="bold white on red",
        )
