"""``proxyfl export``: a run's model as a file for other programs, with its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import DataRoot, RunName, err, examples, find_run, out
from proxyfl.cli.evaluate import Model, Which
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.files import sha256

if TYPE_CHECKING:
    import torch

    from proxyfl.data.dataset import Split
    from proxyfl.runs.export import ModelCard, TrainedModel
    from proxyfl.runs.run import Run

EXAMPLES = examples(
    "proxyfl export try-1 -o model.onnx",
    "proxyfl export try-1 --to torch-export -o model.pt2 --model best",
)
COMPARED = 512
"""Test images on which the file is compared with the original."""


def export(
    run: RunName,
    to: Annotated[str, typer.Option("--to", help="onnx, torch-export or torchscript.")] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write.", show_default="model.onnx, .pt2 or .pt"),
    ] = None,
    model: Model = Which.last,
    data_root: DataRoot = None,
) -> None:
    """Write a run's model for other programs, with a model card beside it.

    The file includes normalisation, softmax and class names: it takes uint8 images of the model's size, or
    vectors with their original values, and returns probabilities. It is compared with the original on test
    images.
    """
    from proxyfl.core.errors import nearest
    from proxyfl.core.files import write_output
    from proxyfl.runs import portable
    from proxyfl.runs.model_page import model_page
    from proxyfl.runs.run import Run

    if to not in portable.FORMS:
        raise ConfigError(f"--to {to} is not a known format; {nearest(to, portable.FORMS)}")
    suffix = portable.FORMS[to][0]
    path = output or Path(f"model{suffix}")
    if path.suffix != suffix:
        raise ConfigError(f"--output {path} must end in {suffix} with --to {to}")
    found = Run(find_run(run))
    trained = found.model(model)
    card = trained.card
    test = _test_images(found, card, data_root)
    images = _drawn(card) if test is None else test.images[:COMPARED]
    images = images if card.image_size else images.float()
    result = portable.export(trained, to, path, images)
    which = f"{'drawn' if test is None else 'test'} {'images' if card.image_size else 'vectors'}"
    compared = (
        f"Compared with the original on {result.images} {which}: largest difference of a probability "
        f"{result.difference:.1e}, the same class for {result.same} of {result.images}."
    )
    page = model_page(found, card, path.name, _per_class(trained, test), compared)
    described = write_output(path.with_suffix(".md"), page.encode())
    for name, text in (("model", path), *_signed(found, path, card), ("card", described), ("", compared)):
        out().print(f"{name:11}{text}".strip(), markup=False, soft_wrap=True)


def _signed(run: Run, path: Path, card: ModelCard) -> list[tuple[str, Path]]:
    """The signature of the federation's server, where the run is that of one and its key is here."""
    from importlib.util import find_spec

    if not run.at_sites or find_spec("cryptography") is None:
        return []
    from proxyfl.deploy import audit, model_signing

    deployment = model_signing.deployment_of(run.path)
    if deployment is None:
        err().print("note: not signed, because the key of the federation's server is not on this machine")
        return []
    audit.AuditLog(deployment.path).add("signed", model=path.name, sha256=sha256(path), round=card.round)
    return [("signature", model_signing.sign(path, deployment, round=card.round))]


def _test_images(run: Run, card: ModelCard, data_root: Path | None) -> Split | None:
    """The run's test images; None, with a note, where they are not at hand."""
    from proxyfl.runs.simulation import load_dataset

    try:
        if run.at_sites:
            raise DataError("the images of a real federation stay at its sites")
        dataset = load_dataset(run.config, data_root or run.directory.data_root())
        if dataset.classes != card.classes or not len(dataset.test):
            raise DataError(f"'{run.config.data.name}' has no test images of the model's classes")
    except (DataError, ConfigError) as error:
        err().print(f"note: compared on random images, because {error}", markup=False, soft_wrap=True)
        return None
    return dataset.test


def _drawn(card: ModelCard) -> torch.Tensor:
    import torch

    shape, generator = (16, *card.shape), torch.Generator().manual_seed(1)
    if not card.image_size:
        return torch.randn(shape, generator=generator) * torch.tensor(card.std) + torch.tensor(card.mean)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def _per_class(trained: TrainedModel, test: Split | None) -> list[tuple[int, float | None]]:
    """Test images of each class, and the share of them that the model knows."""
    from proxyfl.runs.portable import probabilities

    if test is None:
        return []
    right = probabilities(trained, test.images).argmax(1) == test.labels
    found: list[tuple[int, float | None]] = []
    for label in range(len(trained.card.classes)):
        of_class = right[test.labels == label]
        found.append((len(of_class), float(of_class.float().mean()) if len(of_class) else None))
    return found
