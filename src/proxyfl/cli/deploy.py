"""``proxyfl deploy``: real federations on Flower, for those who run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli import deploy_keep, deploy_life, deploy_look, deploy_scaffold, deploy_trust
from proxyfl.cli.common import INTERRUPTED, Quiet, command, err, examples, out, plain_table
from proxyfl.cli.deploy_life import end_on_signals, require_flower, show
from proxyfl.cli.deploy_scaffold import Folder
from proxyfl.cli.ls import AsJson
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
app.command(epilog=deploy_trust.APPROVE_EXAMPLES)(deploy_trust.approve)
app.command(epilog=deploy_trust.AUDIT_EXAMPLES)(deploy_trust.audit)
app.command(epilog=deploy_keep.ROTATE_EXAMPLES)(deploy_keep.rotate)
app.command(epilog=deploy_keep.BACKUP_EXAMPLES)(deploy_keep.backup)
app.command(epilog=deploy_keep.RESTORE_EXAMPLES)(deploy_keep.restore)
app.command(epilog=deploy_keep.PRUNE_EXAMPLES)(deploy_keep.prune)
app.command(epilog=examples("proxyfl deploy attach DIR"))(deploy_life.attach)
app.command(epilog=examples("proxyfl deploy stop DIR", "proxyfl deploy stop DIR --now"))(deploy_life.stop)
app.command(epilog=examples("proxyfl deploy add-site DIR lyon"))(deploy_life.add_site)
app.command(epilog=examples("proxyfl deploy remove-site DIR lyon"))(deploy_life.remove_site)


@app.command(epilog=examples("proxyfl deploy server DIR"))
def server(folder: Folder) -> None:
    """Run the federation's server: Flower's SuperLink behind the gate that admits the sites.

    It runs until Ctrl-C. After a crash, start it again: sites reconnect by themselves.
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
            _tell(signing.signed_by(deployment))

    _tell(f"the server of {deployment.name} is starting")
    supervise.serve(deployment, _tell, ready)


@app.command(
    epilog=examples(
        "proxyfl deploy site site-03 --data ~/images --approve",
        "proxyfl deploy site site-03 --data images.npz --server 10.0.0.5:8000",
    )
)
def site(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR/SITE", help="The site's folder, as received from the operator.")
    ],
    data: Annotated[Path, typer.Option(help="This site's images: a folder, an npz file, a CSV of labels.")],
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The server's address.", show_default="as in site.toml")
    ] = "",
    approve: Annotated[
        bool,
        typer.Option(
            "--approve", help="Show and approve what the folder offers, if nothing is approved yet."
        ),
    ] = False,
) -> None:
    """Take part with this machine's images: Flower's SuperNode, which computes what the server asks for.

    It runs until Ctrl-C and reconnects whenever the server was offline.
    """
    require_flower()
    from proxyfl.deploy import supervise
    from proxyfl.deploy.approval import APPROVAL_FILE
    from proxyfl.deploy.settings import Site

    settings = Site.read(folder)
    _warn_insecure(settings)
    if approve and not settings.insecure and not (settings.path / APPROVAL_FILE).exists():
        deploy_trust.agree(settings, yes=True, of_folder=True)
    end_on_signals("SIGTERM", "SIGHUP")
    supervise.take_part(settings, data, _tell, server)


@app.command(
    epilog=examples(
        "proxyfl deploy run DIR", "proxyfl deploy run DIR --detach", "proxyfl deploy run DIR --rounds 50"
    )
)
def run(
    folder: Folder,
    detach: Annotated[bool, typer.Option("--detach", help="Start it and leave it to the server.")] = False,
    enrol_again: Annotated[
        bool, typer.Option("--enrol-again", help="Let every site count its images again first.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(help="Extend the run to this many rounds in total, even if it is finished.", min=1),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Start the run, or continue it from its last checkpoint, and follow it.

    Ctrl-C stops the run and keeps its checkpoint; the same command continues it.
    """
    require_flower()
    from proxyfl.deploy import longer, operate
    from proxyfl.deploy.audit import AuditLog
    from proxyfl.deploy.enrolment import forget_counts
    from proxyfl.deploy.members import settle
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.status import is_over
    from proxyfl.deploy.stopping import clear_stop, stop_now

    deployment = Deployment.read(folder)
    if operate.is_running(deployment):
        raise RunError(
            f"{deployment.run} is running; look at it with '{command('deploy', 'status', folder)}'"
        )
    if rounds is not None:
        operate.require_server(deployment, _tell)
        deployment = longer.lengthen(deployment, rounds)
    if is_over(deployment):
        another = f"{deployment.run} is finished; results: {command('show', deployment.run)}"
        raise RunError(
            f"{another}; --rounds N extends it; for another run move that folder away, change what you "
            f"like in [experiment] of {deployment.file} (rounds is in [experiment.federation]) and give this "
            "command again"
        )
    operate.require_server(deployment, _tell)
    AuditLog(deployment.path).add("run asked for", rounds=deployment.config.federation.rounds)
    deployment, changes = settle(deployment)
    for change in changes:
        _tell(change)
    if enrol_again:
        forget_counts(deployment.run, private=deployment.config.privacy.is_on)
    clear_stop(deployment)
    number = operate.submit(deployment)
    if detach:
        _tell(f"run {number} started; look at it with: {command('deploy', 'status', folder)}")
        return
    end_on_signals("SIGTERM")
    try:
        show(deployment, operate.follow(deployment, number), quiet)
    except KeyboardInterrupt as interrupt:
        stop_now(deployment)
        typer.echo(f"stopped; continue with: {command('deploy', 'run', folder)}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt


@app.command(epilog=examples("proxyfl deploy status DIR", "proxyfl deploy status DIR --json"))
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show whether the server is up, which sites are connected, and how far the run is."""
    require_flower()
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.status import as_table, look

    deployment = Deployment.read(folder)
    found = look(deployment)
    if as_json:
        typer.echo(json.dumps(as_table(deployment, found), indent=1))
        return
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
