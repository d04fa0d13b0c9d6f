"""The command line: ``proxyfl VERB``, one file per verb.

Nothing heavy is imported here: verbs import what they need when they are called, so that ``--help`` answers
at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Annotated

import typer

from proxyfl import __version__
from proxyfl.cli import (
    comm,
    config,
    dashboard,
    data,
    demo,
    deploy,
    evaluate,
    export,
    listings,
    ls,
    methods,
    models,
    new_method,
    paper,
    plot,
    predict,
    profile,
    report,
    resume,
    run,
    sweep,
    table,
    tune,
    validate,
    verify,
)
from proxyfl.cli.common import Verbs, examples
from proxyfl.core.network import ALLOW_DOWNLOAD
from proxyfl.core.plugins import VARIABLE, load_plugins

TRAIN, LOOK, USE, KNOW = "Train", "Inspect runs", "Use a model", "Methods, data, settings"
DEPLOY = "Real federations"

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "proxyfl demo",
        "proxyfl run digits --method proxyfl --rounds 20",
        "proxyfl ls",
        "proxyfl methods show proxyfl",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from proxyfl.core.provenance import this_commit

        commit = this_commit()
        typer.echo(f"proxyfl {__version__}" + (f" ({commit})" if commit != __version__ else ""))
        raise typer.Exit


@app.callback()
def proxyfl(
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE|FILE.py",
            show_default=False,
            help=f"Your code, imported first: models and methods it registers get a name. Or ${VARIABLE}.",
        ),
    ] = None,
    allow_download: Annotated[
        bool,
        typer.Option(
            "--allow-download",
            help=f"A frozen encoder may be downloaded by its name. Or ${ALLOW_DOWNLOAD}=1.",
        ),
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version, in a checkout with its commit.",
        ),
    ] = False,
) -> None:
    """Federated semi-supervised learning: train, resume exactly, inspect, compare.

    `proxyfl demo` shows it all on real data in a few minutes.
    """
    if allow_download:
        os.environ[ALLOW_DOWNLOAD] = "1"
    load_plugins(plugin or ())


app.command(rich_help_panel=TRAIN, epilog=demo.EXAMPLES)(demo.demo)
app.command(rich_help_panel=TRAIN, epilog=run.EXAMPLES)(run.run)
app.command(rich_help_panel=TRAIN, epilog=resume.EXAMPLES)(resume.resume)
app.command(rich_help_panel=TRAIN, epilog=sweep.COMPARE_EXAMPLES)(sweep.compare)
app.command(rich_help_panel=TRAIN, epilog=sweep.SWEEP_EXAMPLES)(sweep.sweep)
app.command(rich_help_panel=TRAIN, epilog=tune.EXAMPLES)(tune.tune)
app.command(rich_help_panel=LOOK, epilog=ls.LS_EXAMPLES)(ls.ls)
app.command(rich_help_panel=LOOK, epilog=ls.SHOW_EXAMPLES)(ls.show)
app.command(rich_help_panel=LOOK, epilog=table.EXAMPLES)(table.table)
app.command(rich_help_panel=LOOK, epilog=plot.EXAMPLES)(plot.plot)
app.command(rich_help_panel=LOOK, epilog=report.EXAMPLES)(report.report)
app.command(rich_help_panel=LOOK, epilog=dashboard.EXAMPLES)(dashboard.dashboard)
app.command(rich_help_panel=LOOK, epilog=validate.EXAMPLES)(validate.validate)
app.add_typer(paper.app, name="paper", rich_help_panel=LOOK)
app.command("eval", rich_help_panel=USE, epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command(rich_help_panel=USE, epilog=predict.EXAMPLES)(predict.predict)
app.command(rich_help_panel=USE, epilog=export.EXAMPLES)(export.export)
app.command(rich_help_panel=USE, epilog=verify.EXAMPLES)(verify.verify)
app.add_typer(deploy.app, name="deploy", rich_help_panel=DEPLOY)
app.add_typer(methods.app, name="methods", rich_help_panel=KNOW)
app.command("new-method", rich_help_panel=KNOW, epilog=new_method.EXAMPLES)(new_method.new_method)
app.add_typer(models.app, name="models", rich_help_panel=KNOW)
app.command(rich_help_panel=KNOW, epilog=comm.EXAMPLES)(comm.comm)
app.command(rich_help_panel=KNOW, epilog=profile.EXAMPLES)(profile.profile)
app.add_typer(data.app, name="data", rich_help_panel=KNOW)
app.add_typer(config.app, name="config", rich_help_panel=KNOW, help="Presets: list, show, copy to edit.")


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a curve's blocks gets question marks, not a traceback.
        with contextlib.suppress(OSError, ValueError):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    listings.kept(sys.argv[1:], lambda: app(prog_name="proxyfl"))
