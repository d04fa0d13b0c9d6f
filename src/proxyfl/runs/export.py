"""Models as one file: weights, class names, normalisation and how to build the network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from proxyfl.core.errors import RunError
from proxyfl.core.files import write_tensors
from proxyfl.core.state import Tensors
from proxyfl.data.augment import normalise
from proxyfl.models import build


@dataclass(frozen=True)
class ModelCard:
    """Everything beside the weights that is needed to use a model."""

    network: str
    width: int
    heads: bool
    channels: int
    image_size: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    method: str
    round: int
    accuracy: float


@dataclass
class TrainedModel:
    """A network with its card. Call it with uint8 images (N, channels, height, width) for probabilities."""

    network: nn.Module
    card: ModelCard

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        device = next(self.network.parameters()).device
        logits = self.network(normalise(images.to(device), self.card.mean, self.card.std))
        probabilities: Tensor = logits.float().softmax(1)
        return probabilities


def save_model(path: Path, weights: Tensors, card: ModelCard) -> None:
    write_tensors(path, weights, {"proxyfl": json.dumps(asdict(card))})


def load_model(path: Path, device: str = "cpu") -> TrainedModel:
    """A model file back as a network in eval mode."""
    try:
        with safe_open(path, framework="pt") as file:
            fields = json.loads((file.metadata() or {})["proxyfl"])
        for name in ("classes", "mean", "std"):
            fields[name] = tuple(fields[name])
        card = ModelCard(**fields)
        network = build(card.network, len(card.classes), card.channels, card.width, heads=card.heads)
        network.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: no round is finished yet, or the file was lost") from None
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise RunError(f"{path} is not a model of proxyfl or is damaged: {error}") from error
    return TrainedModel(network.to(device).eval(), card)
