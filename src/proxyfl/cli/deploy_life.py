"""``proxyfl deploy attach``, ``stop``, ``add-site``, ``remove-site``: what is done to a federation that is
under way.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import INTERRUPTED, Quiet, command, err, out
from proxyfl.cli.deploy_scaffold import Folder
from proxyfl.core.errors import RunError, missing_extra

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxyfl.deploy.settings import Deployment
    from proxyfl.runs.progress import LiveProgress


def attach(folder: Folder, quiet: Quiet = False) -> None:
    """Follow the current run. Ctrl-C stops following; the run continues."""
    require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.status import run_line

    deployment = Deployment.read(folder)
    number = operate.under_way(deployment)
    err().print(run_line(deployment), markup=False, soft_wrap=True)
    try:
        show(deployment, operate.follow(deployment, number, past=False), quiet)
    except KeyboardInterrupt:
        typer.echo(
            f"the run continues; follow it again with: {command('deploy', 'attach', folder)}", err=True
        )


def stop(
    folder: Folder,
    now: Annotated[
        bool, typer.Option("--now", help="Stop immediately and abandon the current round.")
    ] = False,
) -> None:
    """Stop the run after the current round. Its checkpoint is kept: 'proxyfl deploy run' continues it."""
    require_flower()
    from proxyfl.deploy import operate
    from proxyfl.deploy.audit import AuditLog
    from proxyfl.deploy.settings import Deployment
    from proxyfl.deploy.stopping import ask_to_stop, stop_now

    deployment = Deployment.read(folder)
    finished = False
    if now:
        finished = not stop_now(deployment)
        said = "the run finished before it was stopped" if finished else "stopped"
    else:
        number = operate.under_way(deployment)
        AuditLog(deployment.path).add("stop asked for", now=False)
        ask_to_stop(deployment)
        typer.echo("the run stops after the current round; waiting (--now stops at once)", err=True)
        *_, last = operate.follow(deployment, number, past=False)
        said, finished = str(last.get("text") or last["event"]), last["event"] == "finished"
    again = "" if finished else f"; continue with: {command('deploy', 'run', folder)}"
    out().print(f"{said}{again}", markup=False, soft_wrap=True)


SiteName = Annotated[str, typer.Argument(metavar="NAME", help="The site.", show_default=False)]


def add_site(folder: Folder, name: SiteName) -> None:
    """Add a site to the federation. It joins a run in progress from the next round on."""
    require_flower()
    from proxyfl.deploy import members

    for line in members.add_site(folder, name):
        out().print(line, markup=False, soft_wrap=True)


def remove_site(folder: Folder, name: SiteName) -> None:
    """Remove a site from the federation. Its key is no longer accepted, even during a run."""
    require_flower()
    from proxyfl.deploy import members

    for line in members.remove_site(folder, name):
        out().print(line, markup=False, soft_wrap=True)


def show(deployment: Deployment, lines: Iterable[dict[str, Any]], quiet: bool) -> None:
    """What happens in a run, up to its end and its result."""
    from proxyfl.cli.progress import tell_result
    from proxyfl.runs.progress import LiveProgress
    from proxyfl.runs.run import Run

    before = [line.get("accuracy") for line in Run(deployment.run).metrics] if deployment.run.is_dir() else []
    rounds = deployment.config.federation.rounds
    with LiveProgress(err(), rounds, before, quiet=quiet) as progress:
        for line in lines:
            if line.get("asked"):
                again = command("deploy", "run", deployment.path)
                progress.console.print(
                    f"{line['reason']}; continue with: {again}", markup=False, soft_wrap=True
                )
                raise typer.Exit(INTERRUPTED)
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
    tell_result(finished, "" if deployment.test_path else " --data folder:PATH")
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
    return f"on {source.get('images', 0):,} images held out at {names}, larger sites weighing more"


def require_flower() -> None:
    if find_spec("flwr") is None:
        raise missing_extra("flwr", "flower")


def end_on_signals(*names: str) -> None:
    """A service manager's stop, or a closed terminal, ends this like Ctrl-C: with what it started."""
    import signal

    for name in names:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
