"""Image encoders in ONNX files, through onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.errors import ConfigError, missing_extra
from proxyfl.core.files import sha256
from proxyfl.encoders.encoder import Encoder
from proxyfl.encoders.preparation import FILE, preparation


def read_onnx(place: str) -> Encoder:
    """The encoder in a file with one input, images (N, channels, size, size). How they are prepared says a
    ``preprocessor_config.json`` beside it; without one, values are between 0 and 1.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "encoders") from error
    file = Path(place).expanduser()
    if not file.is_file():
        raise ConfigError(f"onnx:{place} is no file; name an ONNX file")
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for every fault
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(f"onnx:{place} cannot be read by onnxruntime: {why[:300]}") from None
    inputs, outputs = session.get_inputs(), session.get_outputs()
    shape = inputs[0].shape
    if len(inputs) != 1 or len(shape) != 4 or inputs[0].type != "tensor(float)":
        taken = ", ".join(f"{one.name} {one.shape}" for one in inputs)
        raise ConfigError(
            f"onnx:{place} takes {taken}; an encoder takes float32 images (N, channels, size, size)"
        )
    if isinstance(shape[0], int):
        raise ConfigError(
            f"onnx:{place} takes batches of {shape[0]} alone; export it for batches of any size"
        )
    beside, channels, side = file.with_name(FILE), _number(shape[1]), _number(shape[3])
    told = preparation(beside) if beside.is_file() else {"size": side}
    hashes = [
        sha256(part) for part in (file, *sorted(file.parent.glob(f"{file.name}[._]data"))) if part.is_file()
    ]
    output = next((one.name for one in outputs if len(one.shape) == 2), outputs[0].name)
    return Encoder(
        _Session(session, inputs[0].name, output), channels=channels, weights_hash=" ".join(hashes), **told
    )


class _Session:
    """A vector for each image: an output of two dimensions, else the first place of the first output."""

    def __init__(self, session: Any, given: str, wanted: str) -> None:
        self.session, self.given, self.wanted = session, given, wanted

    def __call__(self, images: Tensor) -> Tensor:
        try:
            (found,) = self.session.run([self.wanted], {self.given: images.contiguous().numpy()})
        except Exception as error:  # as above
            raise ValueError(str(error).strip().partition("\n")[0]) from None
        features = torch.from_numpy(found)
        return features[:, 0] if features.dim() == 3 else features


def _number(side: Any) -> int:
    return side if isinstance(side, int) else 0
