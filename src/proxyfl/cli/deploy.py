"""``proxyfl deploy``: real federations on Flower, for those who run them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli import deploy_kit
from proxyfl.cli.common import INTERRUPTED, Quiet, command, err, examples, out, plain_table
from proxyfl.cli.deploy_kit import Folder
from proxyfl.core.errors import RunError, missing_extra

if TYPE_CHECKING:
    from proxyfl.cli.progress import LiveProgress
    from proxyfl.deploy.settings import Deployment, Site

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Real federations on Flower: set up, server, sites, run, status.",
    epilog=examples(
        "proxyfl deploy server DIR",
        "proxyfl deploy site DIR/site-03 --data ~/images",
        "proxyfl deploy run DIR",
        "proxyfl deploy status DIR",
    ),
)

app.command(epilog=deploy_kit.INIT_EXAMPLES)(deploy_kit.init)
app.command(epilog=deploy_kit.EXPLAIN_EXAMPLES)(deploy_kit.explain)
app.command(epilog=deploy_kit.CHECK_EXAMPLES)(deploy_kit.check)


@app.command(epilog=examples("proxyfl deploy server DIR"))
def server(folder: Folder) -> None:
    """Run the federation's server: Flower's SuperLink, and before it the gate that lets sites in.

    It stays until Ctrl-C. After a crash start it again: sites come back by themselves.
    """
    _require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.programs import first_ended
    from proxyfl.deploy.settings import Deployment

    deployment = Deployment.read(folder)
    _warn_insecure(deployment)
    _end_on_signals()
    with operate.server(deployment, _tell) as started:
        _tell(f"server ready at {deployment.address}; start the run with: {command('deploy', 'run', folder)}")
        program = first_ended(started)
        name = "SuperLink" if program is started[0] else "gate"
        raise RunError(f"the {name} ended by itself (exit code {program.ended}): {program.trouble()}")


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
    _require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.settings import Site

    settings = Site.read(folder)
    _warn_insecure(settings)
    _end_on_signals()
    operate.take_part(settings, data, _tell, server)


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
    _require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.enrolment import forget_counts
    from proxyfl.deploy.settings import Deployment

    deployment = Deployment.read(folder)
    if operate.is_running(deployment):
        raise RunError(
            f"{deployment.run} is running; look at it with '{command('deploy', 'status', folder)}'"
        )
    operate.require_server(deployment)
    if enrol_again:
        forget_counts(deployment.run)
    number = operate.submit(deployment)
    if detach:
        _tell(f"run {number} started; look at it with: {command('deploy', 'status', folder)}")
        return
    try:
        _show(deployment, number, quiet)
    except KeyboardInterrupt as interrupt:
        operate.stop(deployment, number)
        typer.echo(f"stopped; continue with: {command('deploy', 'run', folder)}", err=True)
        raise typer.Exit(INTERRUPTED) from interrupt


@app.command(epilog=examples("proxyfl deploy status DIR"))
def status(folder: Folder) -> None:
    """Is the server up, which sites are connected, how far is the run."""
    _require_flower()
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


def _show(deployment: Deployment, number: str, quiet: bool) -> None:
    from proxyfl.cli.progress import LiveProgress, tell_result
    from proxyfl.deploy import operate
    from proxyfl.runs.run import Run

    before = [line["accuracy"] for line in Run(deployment.run).metrics] if deployment.run.is_dir() else []
    rounds = deployment.config.federation.rounds
    with LiveProgress(err(), rounds, before, quiet=quiet) as progress:
        for line in operate.follow(deployment, number):
            if line["event"] == "stopped":
                raise RunError(f"{line['reason']}")
            if progress.live:
                _move(progress, line)
            if "text" in line and not quiet and not (progress.live and line["event"] == "finished round"):
                progress.console.print(line["text"], markup=False, soft_wrap=True)
    finished = Run(deployment.run)
    if quiet:
        typer.echo(str(finished.path))
        return
    tell_result(finished)
    out().print(f"{'accuracy':11}{_where(finished.metrics[-1])}", markup=False, soft_wrap=True)


def _move(progress: LiveProgress, line: dict[str, Any]) -> None:
    """The bar, by what the server wrote down."""
    from proxyfl.core.state import ServerState, Update
    from proxyfl.federation.loop import RoundReport

    if line["event"] == "round":
        progress.round_started(line["round"], line["clients"])
    elif line["event"] in ("answered", "failed"):
        progress.answered(Update(line["round"], line["client"], 0, {}))
    elif line["event"] == "finished round":
        progress.round_finished(RoundReport(ServerState(line["round"], {}), line, {}))


def _where(metrics: dict[str, Any]) -> str:
    """Where a round's accuracy comes from, in words."""
    source = metrics.get("evaluation", {})
    if source.get("where") == "server":
        return f"on {source['images']:,} test images at the server"
    names = ", ".join(source.get("sites", []))
    return f"on {source.get('images', 0):,} images kept back at {names}, larger sites weighing more"


def _require_flower() -> None:
    if find_spec("flwr") is None:
        raise missing_extra("flwr", "flower")


def _end_on_signals() -> None:
    """A service manager's stop, or a closed terminal, ends this like Ctrl-C: with what it started."""
    import signal

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)


def _tell(text: str) -> None:
    err().print(text, markup=False, soft_wrap=True)


def _warn_insecure(settings: Deployment | Site) -> None:
    if settings.insecure:
        err().print(
            "WARNING: this federation is insecure: no encryption, no authentication. Anyone who reaches the "
            "port can read and change models and run code. Only for trying out on one machine.",
            style="bold white on red",
        )
