"""``proxyfl plot``: runs as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proxyfl.cli.common import examples, out
from proxyfl.cli.table import find_runs

EXAMPLES = examples(
    "proxyfl plot runs/demo -o accuracy.pdf",
    "proxyfl plot try-1 try-2 --metric pseudo_selected_accuracy -o trusted.png",
    "proxyfl plot runs --by method,alpha -o alphas.svg",
)


def plot(
    places: Annotated[
        list[str],
        typer.Argument(metavar="RUN|DIR...", help="Runs, or folders to search.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: .pdf, .png or .svg.")] = Path(
        "figure.pdf"
    ),
    metric: Annotated[
        str, typer.Option(help="Any column of `Run.frame()`: accuracy, a loss, seconds …")
    ] = "accuracy",
    by: Annotated[
        str, typer.Option(metavar="KEY,KEY", help="Settings to group by, one line per value.")
    ] = "method",
    title: Annotated[str, typer.Option(help="The heading.", show_default="the metric and the data")] = "",
) -> None:
    """Draw a metric of runs against the rounds; runs that differ only in the seed: mean and band."""
    from proxyfl.report.plot import plot as draw

    keys = [word.strip() for word in by.split(",") if word.strip()] or ["method"]
    out().print(
        f"figure     {draw(find_runs(places), output, metric, keys, title)}", markup=False, soft_wrap=True
    )
