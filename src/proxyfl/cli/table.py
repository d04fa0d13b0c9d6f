"""``proxyfl table``: many runs as one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import command, err, examples, find_run, is_run, open_runs, option, out, runs_folder
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.text import printable

if TYPE_CHECKING:
    from proxyfl.results.layout import Panel
    from proxyfl.runs.run import Run

EXAMPLES = examples(
    "proxyfl table",
    "proxyfl table runs/demo --against fedavg",
    "proxyfl table --where alpha=0.1 --where method=fedavg --where method=proxyfl",
    "proxyfl table --select train.lr --metric macro-f1",
    "proxyfl table --names sage=SAGE,proxyfl=Ours --columns mean --output table.tex",
    "proxyfl table --format csv --each --output runs.csv",
)
FILE_WIDTH = 80
"""Columns of a table for a terminal that goes to a file."""


class Accuracy(StrEnum):
    mean_last = "mean-last"
    last = "last"
    best = "best"


class Metric(StrEnum):
    """Accuracies, and what runs with keep.metrics = "all" measure beside them."""

    mean_last = "mean-last"
    last = "last"
    best = "best"
    macro_f1 = "macro-f1"
    balanced_accuracy = "balanced-accuracy"
    auroc = "auroc"
    ece = "ece"
    top5 = "top5"


class Format(StrEnum):
    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


Form = Annotated[
    Format | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="terminal, markdown, latex or csv.",
        show_default="by the file's name, else terminal",
    ),
]
SUFFIXES = {".md": Format.markdown, ".tex": Format.latex, ".csv": Format.csv}
TARGET = "Count the rounds to this accuracy."
TARGET_DEFAULT = "90 % of the best mean of each group"
WHERE = "Only runs with this setting. Repeatable; repeating a key allows either value."
SELECT = (
    "Show each method at its best value of this setting, chosen on validation images if the runs have them "
    "(data.validation), else on test data. Repeatable."
)
NAMES = "Rename a method or a setting, as in a paper: sage=SAGE. Repeatable."
COLUMNS = "Show only these columns, in this order, by the start of their headings. Repeatable."


def table(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR|RUN]...",
            help="Runs, or folders to search (two levels deep). Default: $PROXYFL_RUNS, else runs.",
            show_default=False,
        ),
    ] = None,
    metric: Annotated[
        Metric,
        typer.Option(
            metavar="METRIC",
            help=(
                "The metric: accuracy as mean-last, last or best (round); macro-f1, "
                "balanced-accuracy, auroc, ece or top5, each averaged over the last rounds."
            ),
        ),
    ] = Metric.mean_last,
    against: Annotated[str, option("Show paired differences from this method.", metavar="METHOD")] = "",
    target: Annotated[float | None, option(TARGET, default=TARGET_DEFAULT, min=0, max=1)] = None,
    where: Annotated[list[str] | None, option(WHERE, metavar="KEY=VALUE")] = None,
    select: Annotated[list[str] | None, option(SELECT, metavar="KEY")] = None,
    names: Annotated[list[str] | None, option(NAMES, metavar="NAME=TEXT")] = None,
    columns: Annotated[list[str] | None, option(COLUMNS, metavar="HEADING")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Include unfinished runs.")] = False,
    form: Form = None,
    each: Annotated[
        bool, typer.Option("--each", help="CSV with one row per run instead of one per cell.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it to this file.", show_default=False),
    ] = None,
) -> None:
    """Many runs as one table: mean ± std over seeds, rounds to an accuracy, and which differences are noise.

    Runs that differ only in the seed form a cell. If one setting varies, its values are the columns.
    """
    from proxyfl.results import exports
    from proxyfl.results.compare import compare
    from proxyfl.results.layout import columns_named
    from proxyfl.results.panels import panels, question

    form = form or SUFFIXES.get(file.suffix if file else "", Format.terminal)
    if each and form is not Format.csv:
        raise ConfigError(f"--each is for CSV, not {form}; add --format csv")
    if columns and form is Format.csv:
        raise ConfigError("--columns applies to printed tables; a CSV file has every column")
    comparison = compare(
        find_runs(places or ()),
        partial=partial,
        where=_conditions(where or ()),
        select=select or (),
        names=_renamed(names or ()),
    )
    asked = question(comparison, metric, target, against)
    for note in comparison.notes:
        err().print(f"note: {note}", markup=False, soft_wrap=True)
    numbers = exports.runs_to_csv if each else exports.cells_to_csv
    csv = numbers(comparison, asked) if form is Format.csv else ""
    made = panels(comparison, asked)
    show(columns_named(made, columns) if columns else made, form, file, _made_by(), csv=csv)


def show(
    panels: Sequence[Panel],
    form: Format,
    file: Path | None,
    made_by: str,
    *,
    csv: str = "",
    width: int = FILE_WIDTH,
    warning: str = "",
) -> None:
    """Tables on the terminal or in a file; ``csv`` is what they are in that format."""
    from proxyfl.core.files import write_output
    from proxyfl.results import formats

    if form is Format.terminal and file is None:
        console = out()
        console.print(formats.to_rich(panels, console.width, warning))
        return
    texts = {
        Format.csv: lambda: csv,
        Format.markdown: lambda: formats.to_markdown(panels, made_by),
        Format.latex: lambda: formats.to_latex(panels, made_by),
        Format.terminal: lambda: formats.to_plain(panels, width, warning),
    }
    text = texts[form]()
    if file is None:
        typer.echo(printable(text), nl=False)
    else:
        out().print(f"table      {write_output(file, text.encode())}", markup=False, soft_wrap=True)


def find_runs(places: Sequence[str]) -> list[Run]:
    """The runs at the places named: each a run, a run's name, or a folder in which to look for some."""
    from proxyfl.runs.run import runs_below

    if not places:
        folder = runs_folder()
        found = list(runs_below(folder))
        if not found:
            raise RunError(f"no runs in {folder}; start some with 'proxyfl compare', or name their folder")
        return open_runs(found)
    paths: list[Path] = []
    for place in places:
        path = Path(place).expanduser()
        inside = list(runs_below(path)) if path.is_dir() and not is_run(path) else []
        if not inside and path.is_dir() and not any(map(is_run, (path, runs_folder() / place))):
            raise RunError(f"no runs in {path}, nor in the folders in it; name a folder with runs")
        paths += inside or [find_run(place)]
    return open_runs(paths)


def _conditions(texts: Iterable[str]) -> list[tuple[str, Any]]:
    from proxyfl.core.trees import dotted, parse_assignment

    return [pair for text in texts for pair in dotted(parse_assignment(text)).items()]


def _renamed(texts: Iterable[str]) -> dict[str, str]:
    """``sage=SAGE,proxyfl=Ours`` or one at a time."""
    pairs = [text.partition("=") for given in texts for text in given.split(",")]
    if wrong := [name for name, _, new in pairs if not name.strip() or not new.strip()]:
        raise ConfigError(f"--names {wrong[0]}: write the name, '=' and what to call it, as in sage=SAGE")
    return {name.strip(): new.strip() for name, _, new in pairs}


def _made_by() -> str:
    """The command that makes this table again."""
    import click

    given = click.get_current_context().params
    words: list[Any] = ["table", *(given["places"] or ())]
    for name, flag in (("metric", "--metric"), ("against", "--against"), ("target", "--target")):
        if given[name] not in (None, "", Metric.mean_last):
            words += [flag, given[name]]
    words += [word for text in given["where"] or () for word in ("--where", text)]
    for name in ("select", "names", "columns"):
        words += [word for text in given[name] or () for word in (f"--{name}", text)]
    words += ["--partial"] if given["partial"] else []
    return command(*words)
