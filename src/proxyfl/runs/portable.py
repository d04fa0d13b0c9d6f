"""A model as a file that runs without this library: normalisation and softmax inside, class names with it.

It takes uint8 images (N, channels, height, width), or float32 vectors (N, features), and gives probabilities
(N, classes). Bringing images to the model's size is left to whoever calls it.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from proxyfl.core.errors import RunError, missing_extra
from proxyfl.data.numbers import is_vectors
from proxyfl.runs.export import ModelCard, TrainedModel

BATCH = 256
CLASSES = "classes"
"""The key of the class names, a JSON list, in a file's metadata."""


Runs = Callable[[Tensor], Tensor]
"""What was exported, to be called with images. Of ONNX the file itself; torch's own forms are not loaded from
a file here, since such a file could hold any code: it is what was written."""


class Portable(nn.Module):
    """The network between what it needs before and after."""

    def __init__(self, network: nn.Module, card: ModelCard) -> None:
        super().__init__()
        self.network = network
        mean, std = torch.tensor(card.mean, dtype=torch.float64), torch.tensor(card.std, dtype=torch.float64)
        self.scale: Tensor
        self.shift: Tensor
        self.takes_images = bool(card.image_size)
        if self.takes_images:
            self.register_buffer("scale", (1 / (255 * std)).float().reshape(1, -1, 1, 1))
            self.register_buffer("shift", (-mean / std).float().reshape(1, -1, 1, 1))
        else:  # features may be far from 0: the mean is taken off before they are scaled
            self.register_buffer("scale", std.float().reshape(1, -1))
            self.register_buffer("shift", mean.float().reshape(1, -1))

    def forward(self, images: Tensor) -> Tensor:
        if self.takes_images:
            seen = images.float() * self.scale + self.shift
        else:
            seen = (images - self.shift) / self.scale
        logits: Tensor = self.network(seen)
        return logits.float().softmax(1)


@dataclass(frozen=True)
class Agreement:
    """How what was exported compares with the original on the same images."""

    images: int
    difference: float
    """The largest difference between two probabilities."""
    same: int
    """Images that both put into the same class."""


def export(trained: TrainedModel, form: str, path: Path, images: Tensor) -> Agreement:
    """Write a model in one of :data:`FORMS`, and compare it with the original on these images."""
    network = Portable(trained.network, trained.card).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):  # exporters talk of their own affairs
            warnings.simplefilter("ignore")
            card = trained.card
            metadata = {CLASSES: json.dumps(card.classes), "proxyfl": json.dumps(card.as_json)}
            exported = FORMS[form][1](network, images[:2].contiguous(), path, metadata)
    except OSError as error:
        raise RunError(
            f"writing {path} failed: {error.strerror or error}; choose another --output"
        ) from error
    theirs = torch.cat([exported(part) for part in torch.split(images, BATCH)])
    ours = probabilities(trained, images)
    same = int((theirs.argmax(1) == ours.argmax(1)).sum())
    return Agreement(len(images), float((theirs - ours).abs().max()), same)


def probabilities(trained: TrainedModel, images: Tensor) -> Tensor:
    """Of many images, so many at a time."""
    return torch.cat([trained(part).cpu() for part in torch.split(images, BATCH)])


def _write_onnx(network: nn.Module, images: Tensor, path: Path, metadata: dict[str, str]) -> Runs:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra("onnx, onnxscript and onnxruntime", "onnx") from error
    for talker in ("onnxscript", "torch.onnx"):
        logging.getLogger(talker).setLevel(logging.ERROR)
    name = "vectors" if is_vectors(images) else "images"
    program = torch.onnx.export(
        network,
        (images,),
        dynamo=True,
        verbose=False,
        input_names=[name],
        output_names=["probabilities"],
        dynamic_shapes={"images": {0: torch.export.Dim.DYNAMIC}},
    )
    if program is None:
        raise RunError("the network cannot be written as ONNX; try --to torch-export")
    program.model.metadata_props.update(metadata)
    program.save(str(path), external_data=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda part: torch.from_numpy(session.run(None, {name: part.numpy()})[0])


def _write_program(network: nn.Module, images: Tensor, path: Path, metadata: dict[str, str]) -> Runs:
    shapes = {"images": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(network, (images,), dynamic_shapes=shapes)
    extra = {f"{name}.json": text for name, text in metadata.items()}
    torch.export.save(program, str(path), extra_files=extra)
    module = program.module()
    return lambda part: module(part).detach()


def _write_script(network: nn.Module, images: Tensor, path: Path, metadata: dict[str, str]) -> Runs:
    traced = torch.jit.trace(network, images)  # type: ignore[no-untyped-call]
    extra = {f"{name}.json": text for name, text in metadata.items()}
    torch.jit.save(traced, str(path), _extra_files=extra)
    return lambda part: traced(part).detach()


FORMS: dict[str, tuple[str, Callable[[nn.Module, Tensor, Path, dict[str, str]], Runs]]] = {
    "onnx": (".onnx", _write_onnx),
    "torch-export": (".pt2", _write_program),
    "torchscript": (".pt", _write_script),
}
"""How the names of their files end, and who writes them."""
