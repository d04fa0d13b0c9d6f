"""``proxyfl predict``: what a run's model makes of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import RunName, err, examples, find_run, out, plain_table
from proxyfl.cli.evaluate import Model, Which
from proxyfl.core.errors import DataError
from proxyfl.core.text import percent

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = examples(
    "proxyfl predict runs/try-1 photo.png", "proxyfl predict try-1 *.jpg --top 5 --model best"
)
BATCH = 256


def predict(
    run: RunName,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="Image files of any size.", show_default=False)
    ],
    model: Model = Which.last,
    top: Annotated[int, typer.Option(min=1, help="How many classes to name for each image.")] = 3,
) -> None:
    """The most probable classes of image files, by a run's model.

    Images are brought to the model's size, and to grey where it was trained on grey ones.
    """
    import torch
    from rich.markup import escape

    from proxyfl.runs.run import Run

    trained = Run(find_run(run)).model(model)
    card = trained.card
    batch = _read(images, card.channels, card.image_size)
    probabilities = torch.cat([trained(part).cpu() for part in torch.split(batch, BATCH)])
    shares, labels = probabilities.topk(min(top, len(card.classes)), dim=1)
    table = plain_table("image", "class", "probability", right=("probability",))
    for path, row, probability in zip(images, labels.tolist(), shares.tolist(), strict=True):
        for place, (label, share) in enumerate(zip(row, probability, strict=True)):
            named, value = escape(card.classes[label]), percent(share)
            cells = (f"[bold]{named}[/]", f"[bold]{value}[/]") if place == 0 else (named, value)
            table.add_row(escape(str(path)) if place == 0 else "", *cells)
    out().print(table)


def _read(paths: Sequence[Path], channels: int, size: int) -> Tensor:
    import torch

    from proxyfl.data.images import decode_all, survey

    for path in paths:
        if not path.is_file():
            raise DataError(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    decoded, note = decode_all(survey(paths), channels, size, "reading")
    if note:
        err().print(f"note: {note}", markup=False, soft_wrap=True)
    return torch.from_numpy(decoded)
