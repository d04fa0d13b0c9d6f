"""``proxyfl report``: runs as one HTML file to look at, keep and send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxyfl.cli.common import examples, find_run, open_runs, out, tell_left_out
from proxyfl.core.errors import ConfigError

EXAMPLES = examples(
    "proxyfl report runs/digits-proxyfl-seed1-4b2c91",
    "proxyfl report try-1 try-2 try-3 -o compare.html --title 'Three seeds'",
)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs by folder or by name.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="The page's heading.", show_default="the run's name")] = "",
) -> None:
    """Runs as one self-contained page: settings, curves, classes, pseudo-labels, proxies, traffic, time.

    Several runs are shown side by side; those that differ only in the seed are drawn as a mean with a band.
    The file needs no network and can be sent as it is.
    """
    from proxyfl.core.text import in_words
    from proxyfl.report.html.page import write_report

    if output.is_dir():
        raise ConfigError(f"{output} is a folder; give a file such as {output / 'report.html'}")
    places = list(dict.fromkeys(find_run(text) for text in runs))
    written = write_report(open_runs(places), output, title, tell_left_out)
    out().print(f"{written} ({in_words(written.stat().st_size)})", markup=False, soft_wrap=True)
