"""Encoders by name: ``hf:FOLDER_OR_NAME`` through transformers, ``onnx:FILE`` through onnxruntime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError
from proxyfl.core.network import FROZEN, ModelSettings
from proxyfl.data.texts import pack
from proxyfl.encoders.encoder import Frozen
from proxyfl.encoders.hf import read_hf, read_hf_text
from proxyfl.encoders.onnx import read_onnx

KINDS: dict[str, Callable[[str], Frozen]] = {"hf": read_hf, "hf-text": read_hf_text, "onnx": read_onnx}


def require_kind(name: str) -> tuple[str, str]:
    """The kind of an encoder and its place, out of its name."""
    kind, _, place = name.partition(":")
    if kind not in KINDS or not place:
        raise ConfigError(
            f"model.name = {FROZEN}{name} names no encoder; write {FROZEN}hf:FOLDER for a folder that "
            f"transformers reads, or {FROZEN}onnx:FILE"
        )
    return kind, place


def settle_encoder(config: Config) -> Config:
    """The config with the place of its encoder written out and its hash; unchanged where it has none."""
    if not config.model.encoder:
        return config
    kind, place = require_kind(config.model.encoder)
    path = Path(place).expanduser()
    settled = f"{kind}:{path.resolve()}" if path.exists() else config.model.encoder
    found = load_encoder(settled, config.model.encoder_hash)
    model = dataclasses.replace(config.model, name=f"{FROZEN}{settled}", encoder_hash=found.hash)
    return dataclasses.replace(config, model=model)


def load_encoder(name: str, expected: str = "") -> Frozen:
    """The encoder called ``name``; an error where its hash is not the one that is expected."""
    found = _read(name)
    if expected and found.hash != expected:
        raise ConfigError(
            f"the encoder {name} is not the one that was used before; put that one "
            "back, or clear model.encoder_hash to use the present one"
        )
    return found


@lru_cache(maxsize=1)
def _read(name: str) -> Frozen:
    kind, place = require_kind(name)
    return dataclasses.replace(KINDS[kind](place), name=name)


def shape_for(model: ModelSettings, channels: int, image_size: int) -> tuple[int, int]:
    """Channels and size of what the trained network gets: of a frozen encoder its features, and 0."""
    if not model.encoder:
        return channels, image_size
    encoder = load_encoder(model.encoder, model.encoder_hash)
    image = torch.zeros((1, channels, image_size, image_size), dtype=torch.uint8)
    return encoder(pack(["text"]) if encoder.takes == "texts" else image).shape[1], 0
