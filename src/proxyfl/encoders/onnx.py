"""Encoders of images or texts in ONNX files, through onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.errors import ConfigError, missing_extra
from proxyfl.core.files import sha256
from proxyfl.encoders.encoder import Encoder, Frozen, TextEncoder
from proxyfl.encoders.preparation import FILE, preparation
from proxyfl.encoders.tokens import Tokens, pooled, pools_first, settings_in

TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
WHOLE = "sentence_embedding"
"""How an output is called that is a vector for a text already."""


def read_onnx(place: str) -> Frozen:
    """The encoder in a file with one input, images (N, channels, size, size), or with those of a network that
    reads texts. How images are prepared says a ``preprocessor_config.json`` beside it; without one, values
    are between 0 and 1. Texts need a ``tokenizer.json`` beside it.
    """
    file = Path(place).expanduser()
    session = _session(place, file)
    inputs = session.get_inputs()
    names = {one.name for one in inputs}
    hashes = " ".join(
        sha256(part) for part in (file, *sorted(file.parent.glob(f"{file.name}[._]data"))) if part.is_file()
    )
    if "input_ids" in names and names <= TEXT_INPUTS:
        return _of_texts(session, file, hashes)
    shape = inputs[0].shape
    if len(inputs) != 1 or len(shape) != 4 or inputs[0].type != "tensor(float)":
        taken = ", ".join(f"{one.name} {one.shape}" for one in inputs)
        raise ConfigError(
            f"onnx:{place} takes {taken}; an encoder takes float32 images (N, channels, size, size), or the "
            "input_ids of texts"
        )
    if isinstance(shape[0], int):
        raise ConfigError(f"onnx:{place} takes only batches of {shape[0]}; export it for batches of any size")
    beside, channels, side = file.with_name(FILE), _number(shape[1]), _number(shape[3])
    prepared = preparation(beside) if beside.is_file() else {"size": side}
    outputs = session.get_outputs()
    output = next((one.name for one in outputs if len(one.shape) == 2), outputs[0].name)
    return Encoder(
        _Session(session, inputs[0].name, output), channels=channels, weights_hash=hashes, **prepared
    )


def _session(place: str, file: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "encoders") from error
    if not file.is_file():
        raise ConfigError(f"onnx:{place} is not a file; name an ONNX file")
    try:
        return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception of its own for every fault
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(f"onnx:{place} cannot be read by onnxruntime: {why[:300]}") from None


def _of_texts(session: Any, file: Path, hashes: str) -> TextEncoder:
    """Files that belong to a text encoder lie beside it or, where its folder is called onnx, above that."""

    def find(name: str) -> Path | None:
        folders = (file.parent, file.parent.parent) if file.parent.name == "onnx" else (file.parent,)
        return next((folder / name for folder in folders if (folder / name).is_file()), None)

    tokens, first = Tokens(find, settings_in(find, "config.json")), pools_first(find)
    hashed = f"{hashes} {tokens.hash} {'first' if first else 'mean'}"
    return TextEncoder(_Reader(session, tokens, first), weights_hash=hashed)


class _Reader:
    """One vector for a text: an output that is one, else what is made of those of its tokens."""

    def __init__(self, session: Any, tokens: Tokens, first: bool) -> None:
        self.session, self.tokens, self.first = session, tokens, first
        self.inputs = [one.name for one in session.get_inputs()]
        outputs = session.get_outputs()
        whole = [one.name for one in outputs if one.name == WHOLE]
        by_token = [one.name for one in outputs if len(one.shape) == 3]
        self.wanted = (whole or by_token or [outputs[0].name])[0]

    def __call__(self, texts: list[str]) -> Tensor:
        numbers, mask = self.tokens(texts)
        known = {"input_ids": numbers, "attention_mask": mask, "token_type_ids": torch.zeros_like(numbers)}
        found = _run(self.session, self.wanted, {name: known[name].numpy() for name in self.inputs})
        return pooled(found, mask, self.first) if found.dim() == 3 else found


class _Session:
    """A vector for each image: an output of two dimensions, else the first place of the first output."""

    def __init__(self, session: Any, given: str, wanted: str) -> None:
        self.session, self.given, self.wanted = session, given, wanted

    def __call__(self, images: Tensor) -> Tensor:
        features = _run(self.session, self.wanted, {self.given: images.contiguous().numpy()})
        return features[:, 0] if features.dim() == 3 else features


def _run(session: Any, wanted: str, given: dict[str, Any]) -> Tensor:
    try:
        (found,) = session.run([wanted], given)
    except Exception as error:  # as above
        raise ValueError(str(error).strip().partition("\n")[0]) from None
    return torch.from_numpy(found)


def _number(side: Any) -> int:
    return side if isinstance(side, int) else 0
