"""``proxyfl eval``: a run's saved model on the test split."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    RunName,
    examples,
    find_run,
    out,
    plain_table,
    recorded_root,
    require_device,
)
from proxyfl.cli.present import percent

if TYPE_CHECKING:
    from rich.table import Table

    from proxyfl.core.config import Config
    from proxyfl.data.dataset import Dataset
    from proxyfl.federation.evaluate import Evaluation
    from proxyfl.runs.export import TrainedModel

EXAMPLES = examples(
    "proxyfl eval runs/digits-proxyfl-seed1-4b2c91", "proxyfl eval try-1 --model best --data-root ~/data"
)


class Which(StrEnum):
    """The saved models of a run."""

    last = "last"
    best = "best"


Model = Annotated[Which, typer.Option("--model", help="The model of the last round, or of the best one.")]


def evaluate(run: RunName, model: Model = Which.last, data_root: DataRoot = None) -> None:
    """Accuracy of a run's model on the test images of its data set, class by class."""
    from rich.markup import escape

    from proxyfl.runs.run import Run
    from proxyfl.runs.simulation import prepare

    found = Run(find_run(run))
    config, noted = found.config, found.directory.hints()
    require_device(config)
    root = data_root or recorded_root(noted)
    trained = found.model(model, config.compute.device)
    simulation = prepare(config, root)
    if simulation.fingerprint() != noted.get("data"):
        typer.echo(f"warning: this is not the data that {found.path} was trained with", err=True)
    result = _test(trained, config, simulation.dataset)
    console = out()
    card = trained.card
    which = f"{model} model, round {card.round}, {escape(card.method)}"
    console.print(_classes(result, card.classes))
    console.print(
        f"\n[bold]accuracy {percent(result.accuracy)}[/]  ({int(result.confusion.diagonal().sum()):,} of "
        f"{int(result.confusion.sum()):,} test images; {which})",
        soft_wrap=True,
    )
    if result.accuracy != card.accuracy:
        console.print(f"[yellow]the run recorded {percent(card.accuracy)} for this model[/]")
    if model is Which.best:
        console.print("[yellow]the best round was chosen on these test images, so this is optimistic[/]")


def _test(trained: TrainedModel, config: Config, dataset: Dataset) -> Evaluation:
    """The evaluation that the rounds make: same batches, same arithmetic."""
    import torch

    from proxyfl.federation.client import autocast, numerics
    from proxyfl.federation.evaluate import eval_batch
    from proxyfl.federation.evaluate import evaluate as run_test

    device = torch.device(config.compute.device)
    trained.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with numerics(config.compute):
        return run_test(
            trained.network,
            dataset.test,
            trained.card.mean,
            trained.card.std,
            batch=eval_batch(config.compute.eval_batch, dataset.image_size, device),
            autocast=lambda: autocast(config.compute, device),
        )


def _classes(result: Evaluation, names: tuple[str, ...]) -> Table:
    from rich.markup import escape

    right = ("images", "right", "accuracy")
    table = plain_table("class", *right, "most often taken for", right=right, keep=("class",))
    for label, accuracy in enumerate(result.per_class):
        row = result.confusion[label].clone()
        images, correct = int(row.sum()), int(row[label])
        row[label] = 0
        worst, times = int(row.argmax()), int(row.max())
        mistaken = f"{escape(names[worst])} ({times})" if times else ""
        share = "–" if accuracy is None else percent(accuracy)
        table.add_row(escape(names[label]), f"{images:,}", f"{correct:,}", share, mistaken)
    return table
