"""``proxyfl dashboard``: a page on this machine that lists runs and follows those that are running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import Runs, examples, find_run, out
from proxyfl.cli.deploy_life import require_flower
from proxyfl.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    from proxyfl.report.dashboard.server import Dashboard
    from proxyfl.report.dashboard.watch import Federation

EXAMPLES = examples(
    "proxyfl dashboard",
    "proxyfl dashboard runs/try-1",
    "proxyfl dashboard hospital",
    "proxyfl dashboard --runs results/runs --port 9000 --open",
)
USUAL_PORT = 8321


def dashboard(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="One run, by folder or name, instead of all; or a deployment's folder.",
            show_default=False,
        ),
    ] = None,
    runs: Runs = Path("runs"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port; 0: any free port.",
            show_default=f"{USUAL_PORT}, else a free one",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Follow runs in the browser while they run. Ends with Ctrl-C.

    The page is served to this machine only (127.0.0.1) and to you only: its address contains a token that
    other accounts do not know. It reads the runs and changes nothing.
    """
    from proxyfl.report.dashboard.server import serve
    from proxyfl.runs.directory import RunDirectory

    if run is not None and _has_no_run(run):
        require_flower()
        place = Path(run).resolve()
        server = _server(place, port, "run", _federation(place))
        what, url = f"the federation {place}: no round yet", server.link()
    elif run is not None:
        place = find_run(_run_of(run)).resolve()
        RunDirectory(place).require()
        server = _server(place.parent, port, place.name, _federation(place.parent))
        what, url = f"the run {place}", server.link("run", name=place.name)
    elif runs.is_dir():
        server = _server(runs, port)
        what, url = f"runs in {runs}", server.link()
    else:
        raise RunError(f"{runs} is not a folder; start a run first, or name the folder with --runs")
    out().print(f"{url}  ({what}; Ctrl-C ends it)", markup=False, soft_wrap=True)
    with _opened(url) if browser else nullcontext():
        serve(server)


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """The page in the browser, by a file of this user's: everyone could read the token on a command line."""
    import tempfile
    import webbrowser
    from html import escape

    with tempfile.TemporaryDirectory(prefix="proxyfl-") as folder:
        file = Path(folder) / "dashboard.html"
        head = f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">'
        file.write_text(f'<!doctype html>{head}<a href="{escape(url)}">dashboard</a>\n', encoding="utf-8")
        webbrowser.open(file.as_uri())
        yield


def _run_of(given: str) -> str:
    """The run of a deployment, where its folder is given."""
    return str(Path(given) / "run") if _is_deployment(Path(given)) else given


def _has_no_run(given: str) -> bool:
    """Whether this is the folder of a deployment whose run has not begun."""
    return _is_deployment(Path(given)) and not (Path(given) / "run").exists()


def _is_deployment(folder: Path) -> bool:
    return (folder / "federation.toml").is_file()


def _federation(folder: Path) -> Federation | None:
    """Who tells of the sites, where the folder is a deployment's."""
    if not _is_deployment(folder) or find_spec("flwr") is None:
        return None
    from proxyfl.deploy.overview import Overview

    return Overview(folder).page


def _server(
    runs: Path, port: int | None, only: str | None = None, federation: Federation | None = None
) -> Dashboard:
    from proxyfl.report.dashboard.server import Dashboard

    try:
        return Dashboard(runs, USUAL_PORT if port is None else port, only=only, federation=federation)
    except OSError as error:
        if port is None:
            return Dashboard(runs, only=only, federation=federation)
        reason = error.strerror or error
        raise ConfigError(f"port {port} cannot be used: {reason}; omit --port to use a free one") from error
