"""``proxyfl dashboard``: a page on this machine that lists runs and follows those that are running."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import Runs, examples, out
from proxyfl.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from proxyfl.report.dashboard.server import Dashboard

EXAMPLES = examples("proxyfl dashboard", "proxyfl dashboard --runs results/runs --port 9000 --open")
USUAL_PORT = 8321


def dashboard(
    runs: Runs = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="The port; 0: any free one.", show_default=f"{USUAL_PORT}, else a free one"
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Follow runs in the browser while they run. Ends with Ctrl-C.

    The page is for this machine only (127.0.0.1), reads nothing but the runs folder and changes nothing.
    """
    from proxyfl.report.dashboard.server import serve

    if not runs.is_dir():
        raise RunError(f"{runs} is not a folder; start a run first, or name the folder with --runs")
    server = _server(runs, port)
    out().print(f"{server.url}  (runs in {runs}; Ctrl-C ends it)", markup=False, soft_wrap=True)
    if browser:
        import webbrowser

        webbrowser.open(server.url)
    serve(server)


def _server(runs: Path, port: int | None) -> Dashboard:
    from proxyfl.report.dashboard.server import Dashboard

    try:
        return Dashboard(runs, USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return Dashboard(runs)
        reason = error.strerror or error
        raise ConfigError(
            f"port {port} cannot be used: {reason}; leave --port away for a free one"
        ) from error
