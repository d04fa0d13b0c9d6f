"""``proxyfl eval``: a run's saved model on the test split."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    RunName,
    err,
    examples,
    find_run,
    out,
    plain_table,
    require_device,
)
from proxyfl.cli.present import measures_line
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.text import percent

if TYPE_CHECKING:
    from rich.table import Table

    from proxyfl.core.config import DataSettings
    from proxyfl.data.dataset import Split
    from proxyfl.federation.evaluate import Evaluation
    from proxyfl.runs.export import ModelCard
    from proxyfl.runs.run import Run

EXAMPLES = examples(
    "proxyfl eval runs/digits-proxyfl-seed1-4b2c91",
    "proxyfl eval try-1 --model best --data-root ~/data",
    "proxyfl eval hospital/run --data folder:test-images",
    "proxyfl eval try-1 --clients --personalised",
)


class Which(StrEnum):
    """The saved models of a run."""

    last = "last"
    best = "best"


Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="folder:PATH|npz:FILE|table:FILE",
        help="Evaluate on these images instead; classes are matched by name.",
        show_default=False,
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        help="With --data: names of arrays or columns, as in images=pixels,labels=diagnosis.",
        show_default="as the run's own",
    ),
]
Model = Annotated[Which, typer.Option("--model", help="The model of the last round, or of the best one.")]


Clients = Annotated[
    bool,
    typer.Option("--clients", help="Evaluate on each client's held-out images (data.validation)."),
]
Personalised = Annotated[
    bool,
    typer.Option(
        "--personalised",
        help="With --clients: also evaluate after one local epoch on the client's labelled images.",
    ),
]


def evaluate(
    run: RunName,
    model: Model = Which.last,
    data: Data = None,
    keys: Keys = None,
    data_root: DataRoot = None,
    clients: Clients = False,
    personalised: Personalised = False,
) -> None:
    """Accuracy of a run's model on the test images of its data set, overall and per class.

    For a real federation: on the server's test images if it has some; otherwise pass yours with --data.
    """
    from rich.markup import escape

    from proxyfl.cli.clients import print_accuracies
    from proxyfl.data.dataset import Split
    from proxyfl.runs.evaluation import evaluate_model
    from proxyfl.runs.run import Run

    found = Run(find_run(run))
    config = found.config
    require_device(config)
    if clients or personalised:
        if data is not None or not clients:
            raise ConfigError("--personalised requires --clients, and neither can be combined with --data")
        print_accuracies(found, model, personalised, data_root, out())
        return
    trained = found.model(model, config.compute.device)
    if keys is not None and data is None:
        raise ConfigError("--keys names the arrays or columns of --data; give --data as well")
    images = _images(found, trained.card, data, keys, data_root)
    if trained.card.encoder and images.called != "vectors":
        images = Split(trained.features(images.images), images.labels)
    result = evaluate_model(trained, config, images, scores=True)
    console = out()
    card = trained.card
    what = card.called
    which = f"{model} model, round {card.round}, {escape(card.method)}"
    console.print(_classes(what, result, card.classes))
    console.print(
        f"\n[bold]accuracy {percent(result.accuracy)}[/]  ({int(result.confusion.diagonal().sum()):,} of "
        f"{int(result.confusion.sum()):,} test {what}; {which})",
        soft_wrap=True,
    )
    console.print(measures_line(result.measures), soft_wrap=True)
    if data is not None:
        return
    if card.accuracy is not None and result.accuracy != card.accuracy:
        console.print(f"[yellow]the run recorded {percent(card.accuracy)} for this model[/]")
    if model is Which.best and found.summary.chosen_on == "test":
        console.print("[yellow]the best round was chosen on these test images, so this is optimistic[/]")


def _images(run: Run, card: ModelCard, data: str | None, keys: str | None, data_root: Path | None) -> Split:
    """The images to test on, their labels in the order of the model's classes."""
    from proxyfl.runs.simulation import prepare

    noted = run.directory.hints()
    if data is not None:
        return _given(data, card, keys, run.config.data)
    if run.at_sites:
        return _of_the_server(run, card)
    simulation = prepare(run.config, data_root or run.directory.data_root())
    if simulation.fingerprint() != noted.get("data"):
        typer.echo(f"warning: this is not the data that {run.path} was trained with", err=True)
    if simulation.dataset.classes != card.classes:
        raise DataError(
            f"the classes of '{run.config.data.name}' differ from the model's, or are in another order; give "
            "test images whose classes have the model's names, with --data folder:PATH or npz:FILE"
        )
    return simulation.dataset.test


def _given(data: str, card: ModelCard, keys: str | None, own: DataSettings) -> Split:
    """The images that were named; of a folder with a test folder in it, those in that. Where nobody says
    otherwise, arrays and columns are called as those of the run's own data.
    """
    from proxyfl.data.reader.known import Form, fitting_keys
    from proxyfl.deploy.site_data import read_test

    kind, _, path = data.partition(":")
    if kind not in ("folder", "npz", "table") or not path:
        raise ConfigError(f"--data {data}: write folder:PATH for class folders, npz:FILE or table:FILE")
    place = Path(path).expanduser()
    if kind == "folder" and (place / "test").is_dir() and "test" not in card.classes:
        place = place / "test"
    if keys is None:
        same = own.name.partition(":")[0] == kind
        keys = fitting_keys(place, own.keys) if same else ""
    channels, side = card.given
    form = Form(card.classes, channels, side, card.features, keys)
    split = read_test(place, form, by_name=True)
    if place.resolve() == Path(own.name.partition(":")[2]).expanduser().resolve():
        err().print(
            f"warning: the run was trained on {split.called} in {place}; unless it has a test split, "
            f"this is not a test: without --data the run is evaluated on {split.called} that it never saw",
            markup=False,
            soft_wrap=True,
        )
    if not side:
        return split
    size = f"{side} × {side}"
    err().print(f"note: {place}, resized to the model's {size} pixels", markup=False, soft_wrap=True)
    return split


def _of_the_server(run: Run, card: ModelCard) -> Split:
    """The test images of the deployment that the run lies in, or what its server holds out."""
    from proxyfl.deploy.server_data import open_server_data
    from proxyfl.deploy.settings import FEDERATION_FILE, Deployment
    from proxyfl.deploy.site_data import open_test

    home = run.path.resolve().parent
    made = Deployment.read(home) if (home / FEDERATION_FILE).is_file() else None
    place = made.test_path if made else None
    if made and place is None and made.server_data:
        return open_server_data(made).held_out
    if place is None:
        raise DataError(
            "the images of this federation are at its sites; give test images of the same classes with "
            "--data folder:PATH or --data npz:FILE"
        )
    keys = made.config.data.keys if made else ""
    return open_test(place, card.classes, *card.given, by_name=True, features=card.features, keys=keys)


def _classes(what: str, result: Evaluation, names: tuple[str, ...]) -> Table:
    from rich.markup import escape

    right = (what, "correct", "accuracy", "precision")
    table = plain_table("class", *right, "most often confused with", right=right, keep=("class",))
    for label, (accuracy, precise) in enumerate(zip(result.per_class, result.precision, strict=True)):
        row = result.confusion[label].clone()
        images, correct = int(row.sum()), int(row[label])
        row[label] = 0
        worst, times = int(row.argmax()), int(row.max())
        mistaken = f"{escape(names[worst])} ({times})" if times else ""
        shares = ["–" if value is None else percent(value) for value in (accuracy, precise)]
        table.add_row(escape(names[label]), f"{images:,}", f"{correct:,}", *shares, mistaken)
    return table
