"""``proxyfl predict``: what a run's model makes of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import RunName, err, examples, find_run, out, plain_table
from proxyfl.cli.evaluate import Model, Which
from proxyfl.core.errors import ConfigError
from proxyfl.core.text import percent

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

EXAMPLES = examples(
    "proxyfl predict runs/try-1 photo.png",
    "proxyfl predict try-1 *.jpg --top 5 --model best",
    "proxyfl predict try-1 new-images/ --csv > predictions.csv",
    "proxyfl predict try-1 new.npz --json",
    "proxyfl predict try-1 patients.csv --csv",
    "proxyfl predict topics letter.txt",
)
BATCH = 256


def predict(
    run: RunName,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE|FOLDER|NPZ|TABLE...",
            help=(
                "Image files of any size, folders or patterns of them, npz files; for "
                "vectors npz files or tables; for texts .txt files or tables."
            ),
            show_default=False,
        ),
    ],
    model: Model = Which.last,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print for each image.")] = 3,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the probabilities of all classes as CSV.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
    keys: Annotated[
        str | None,
        typer.Option(help="The array in npz files, as in images=pixels.", show_default="as the run's own"),
    ] = None,
) -> None:
    """The most probable classes of images, vectors or texts, by a run's model.

    Images are resized to the model's size, and converted to grey if it was trained on grey images. Vectors
    are read from npz files and tables; a table's columns are found by the names that the model was trained
    with. Texts are the rows of tables or whole .txt files.
    """
    import torch

    from proxyfl.data.given import images_key, read_given
    from proxyfl.runs.run import Run

    if as_csv and as_json:
        raise ConfigError("--csv and --json cannot be combined; choose one")
    found = Run(find_run(run))
    trained = found.model(model)
    card = trained.card
    key = images_key(found.config.data.keys if keys is None else keys)
    if keys is not None and not key:
        raise ConfigError(f"--keys {keys}: write images=NAME, the name of the array in npz files")
    given = read_given(images, *card.given, card.features, key)
    for note in given.notes:
        err().print(f"note: {note}", markup=False, soft_wrap=True)
    probabilities = torch.cat([trained(part).cpu() for part in torch.split(given.images, BATCH)])
    what = card.called.removesuffix("s")
    if as_csv or as_json:
        write = _csv if as_csv else _json
        typer.echo(write(what, given.names, card.classes, probabilities), nl=False)
    else:
        out().print(_table(what, given.names, card.classes, probabilities, top))


def _table(what: str, names: Sequence[str], classes: Sequence[str], probabilities: Tensor, top: int) -> Table:
    from rich.markup import escape

    shares, labels = probabilities.topk(min(top, len(classes)), dim=1)
    table = plain_table(what, "class", "probability", right=("probability",))
    for name, row, probability in zip(names, labels.tolist(), shares.tolist(), strict=True):
        for place, (label, share) in enumerate(zip(row, probability, strict=True)):
            named, value = escape(classes[label]), percent(share)
            cells = (f"[bold]{named}[/]", f"[bold]{value}[/]") if place == 0 else (named, value)
            table.add_row(escape(name) if place == 0 else "", *cells)
    return table


def _csv(what: str, names: Sequence[str], classes: Sequence[str], probabilities: Tensor) -> str:
    """A row per image or vector: the most probable class, its probability, and that of every class."""
    from proxyfl.results.formats import csv_text

    pairs = zip(names, probabilities.tolist(), strict=True)
    rows = [[n, classes[row.index(max(row))], *(f"{p:.6g}" for p in (max(row), *row))] for n, row in pairs]
    return csv_text([what, "class", "probability", *classes], rows)


def _json(what: str, names: Sequence[str], classes: Sequence[str], probabilities: Tensor) -> str:
    """A list with an object per image or vector."""
    rows = [
        {
            what: name,
            "class": classes[row.index(max(row))],
            "probability": max(row),
            "probabilities": dict(zip(classes, row, strict=True)),
        }
        for name, row in zip(names, probabilities.tolist(), strict=True)
    ]
    return json.dumps(rows, indent=1) + "\n"
