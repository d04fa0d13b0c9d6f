"""Models as one file: weights, class names, normalisation and how to build the network."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.config import Config
from proxyfl.core.errors import DataError, RunError
from proxyfl.core.settings import OBJECT
from proxyfl.core.state import Tensors
from proxyfl.data.dataset import Encoded, Split, resize
from proxyfl.data.own import pixels, texts, vectors
from proxyfl.data.texts import NUMBERS, is_texts
from proxyfl.data.vectors import prepared
from proxyfl.encoders import Frozen, load_encoder
from proxyfl.encoders.encoding import encoder_of, in_batches
from proxyfl.methods.base import Method
from proxyfl.models import NORMS, Network

BATCH = 64
"""Samples that are encoded at once."""
MAX_SIZE = 4096
"""Pixels along the side of the images that a model may ask for."""


class NotRegistered(RunError):
    """A model whose network only the program has that trained it."""


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
    accuracy: float | None
    """None where its round was not measured."""
    norm: str = "batch"
    hidden: tuple[int, ...] = ()
    dropout: float = 0.0
    features: tuple[str, ...] = ()
    """The names of a vector's features, where its data had some."""
    encoder: str = ""
    """The frozen encoder whose features the network takes; its weights are not part of the model."""
    encoder_hash: str = ""
    encodes: tuple[int, ...] = ()
    """Channels and size of the images that the encoder was given; both are 0 for texts."""

    @property
    def given(self) -> tuple[int, int]:
        """Channels and size of the samples that people have; a size of 0 means vectors, of both 0 texts."""
        channels, size = self.encodes or (self.channels, self.image_size)
        return channels, size

    @property
    def called(self) -> str:
        """What these samples are, in words."""
        channels, size = self.given
        return "images" if size else "vectors" if channels else "texts"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample: (channels, size, size), or (channels,) for vectors."""
        return (self.channels, self.image_size, self.image_size) if self.image_size else (self.channels,)

    def built(self, network: Any = None) -> Network:
        """How to build the network; one of one's own is given."""
        more = {name: getattr(self, name) for name in ("image_size", "norm", "hidden", "dropout")}
        return Network.of(network or self.network, len(self.classes), self.channels, self.width, **more)

    @property
    def as_json(self) -> dict[str, Any]:
        """What is written: without what came later and is at its default."""
        usual = {spec.name: spec.default for spec in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


@dataclass
class TrainedModel:
    """A network with its card. Call it with images for probabilities: a tensor or a numpy array, uint8 or
    between 0 and 1, channels first or last, many or one. Images of another size are resized, with a warning.
    A model of vectors takes numbers of shape (N, d), as its data has them. A model on a frozen encoder takes
    images or a list of texts, which are encoded first, or features; an encoder without a name must be given.
    """

    network: nn.Module
    card: ModelCard
    encoder: Frozen | None = None

    def __repr__(self) -> str:
        card = self.card
        taken = " × ".join(map(str, card.shape))
        return f"<TrainedModel: {card.network} of {card.method}, {taken} to {len(card.classes)} classes>"

    @torch.inference_mode()
    def __call__(self, images: Any) -> Tensor:
        device = next(self.network.parameters()).device
        if not self.card.encoder:
            fitting = self._fitting(images)
        elif len(getattr(images, "shape", ())) == 2 and not is_texts(images):
            fitting = fitting_vectors(images, self.card.channels)
        else:
            fitting = self.features(images)
        logits = self.network(prepared(fitting.to(device), self.card.mean, self.card.std))
        probabilities: Tensor = logits.float().softmax(1)
        return probabilities

    def features(self, images: Any) -> Tensor:
        """What the frozen encoder makes of images or texts."""
        card = self.card
        if self.encoder is None and card.encoder.startswith(OBJECT):
            name = card.encoder.removeprefix(OBJECT)
            raise NotRegistered(
                f"the model takes features of the encoder {name}, which exists only in "
                "Python; open it with proxyfl.load_model(PATH, encoder=…)"
            )
        encoder = self.encoder or load_encoder(card.encoder)
        if encoder.hash != card.encoder_hash:
            raise RunError(f"the encoder {encoder.called} is not the one the model was trained with")
        return in_batches(encoder, self._fitting(images).cpu(), BATCH)

    def _fitting(self, images: Any) -> Tensor:
        """uint8 (N, channels, size, size), texts as data sets hold them, or float32 (N, features)."""
        channels, size = self.card.given
        if self.card.called == "texts":
            packed = isinstance(images, Tensor) and is_texts(images)
            return images if packed else texts([images] if isinstance(images, str) else images)
        if not size:
            return fitting_vectors(images, channels)
        if len(getattr(images, "shape", ())) == (2 if channels == 1 else 3):
            images = images[None]  # one image, as Pillow gives it to numpy
        if isinstance(images, Tensor) and images.dtype == torch.uint8 and images.dim() == 4:
            given = images
        else:
            given = pixels(images)
        if given.shape[1] != channels:
            raise DataError(f"the images have {given.shape[1]} channel(s), but the model takes {channels}")
        if given.shape[-2:] == (size, size):
            return given
        theirs = " × ".join(map(str, given.shape[-2:]))
        warnings.warn(f"images of {theirs} pixels are resized to the model's {size} × {size}", stacklevel=4)
        return resize(Split(given.cpu(), torch.zeros(len(given), dtype=torch.int64)), size).images


def fitting_vectors(samples: Any, features: int) -> Tensor:
    """float32 (N, features)."""
    if len(getattr(samples, "shape", ())) != 2 and not isinstance(samples, list):
        raise DataError(
            f"the model takes vectors of {features} features; give an array of shape (N, {features})"
        )
    found = vectors(samples)
    if found.shape[1] != features:
        raise DataError(f"the vectors have {found.shape[1]} features, but the model takes {features}")
    return found


def model_card(
    config: Config,
    method: Method,
    *,
    channels: int,
    image_size: int,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
    features: Sequence[str] = (),
    encoded: Encoded | None = None,
) -> dict[str, Any]:
    """What a saved model says about itself, but for the round."""
    return {
        "network": config.model.trained,
        "width": config.model.width,
        "heads": method.needs_heads and not method.all_private,
        "channels": channels,
        "image_size": image_size,
        "classes": classes,
        "mean": mean,
        "std": std,
        "method": config.method.name,
        "norm": config.model.norm,
        "hidden": config.model.hidden,
        "dropout": config.model.dropout,
        "features": features,
    } | (_encoder_of(encoded) if encoded else {})


def _encoder_of(encoded: Encoded) -> dict[str, Any]:
    shape = (encoded.channels, encoded.image_size)
    return {"encoder": encoded.encoder, "encoder_hash": encoded.hash, "encodes": shape}


def save_model(path: Path, weights: Tensors, card: ModelCard) -> None:
    write_verified(path, weights, {"proxyfl": json.dumps(card.as_json)})


def _require_plausible(card: ModelCard, weights: Tensors, built: Network) -> None:
    """Refuse a card that does not belong to these weights, before any memory is given for its network."""
    encoder = (card.encoder, card.encoder_hash)
    texts = (card.network, card.method, card.norm, *card.classes, *card.features, *encoder)
    sizes = (card.width, card.channels, card.image_size, card.round, *card.hidden, *card.encodes)
    if not all(isinstance(text, str) for text in texts) or not all(type(size) is int for size in sizes):
        raise ValueError("its card has a name that is not text or a size that is not a whole number")
    numbers = (*card.mean, *card.std, card.dropout, 0.0 if card.accuracy is None else card.accuracy)
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError("its card has a value that is not a number")
    if not len(card.mean) == len(card.std) == card.channels or not 0 <= card.image_size <= MAX_SIZE:
        raise ValueError(f"its card claims {card.channels} channels and images of {card.image_size} pixels")
    fits = len(card.encodes) == 2 and card.encoder and 0 < card.encodes[1] <= MAX_SIZE
    if card.encodes and card.encodes != NUMBERS and not fits:
        raise ValueError(f"its card claims an encoder for images of shape {card.encodes}")
    if card.norm not in NORMS:
        raise ValueError("its card names an unknown normalisation")
    with torch.device("meta"):  # shapes without memory
        shapes = built(card.heads).state_dict()
    if {name: value.shape for name, value in shapes.items()} != {k: v.shape for k, v in weights.items()}:
        raise ValueError(f"its weights are not those of {card.network} at width {card.width}")


def load_model(
    path: str | Path,
    device: str = "cpu",
    *,
    network: Any = None,
    encoder: Frozen | nn.Module | None = None,
) -> TrainedModel:
    """Load a model file as a network in eval mode. If it was trained from your own ``nn.Module``, pass that
    as ``network``; likewise your own frozen encoder as ``encoder``.

    >>> import proxyfl
    >>> model = proxyfl.load_model("runs/first/models/last.safetensors")  # doctest: +SKIP
    >>> probabilities = model(images)  # doctest: +SKIP
    """
    path = Path(path)
    try:
        weights, metadata = read_verified(path)
        found = json.loads(metadata["proxyfl"])
        for name in ("classes", "mean", "std", "hidden", "features", "encodes"):
            found[name] = tuple(found[name]) if name in found else ()
        card = ModelCard(**found)
        if not isinstance(card.network, str):
            raise TypeError("the name of its network is not a text")
        if network is None and card.network.startswith(OBJECT):
            raise NotRegistered(
                f"{path}: its network, {card.network.removeprefix(OBJECT)}, is not registered; open it in "
                f"Python with proxyfl.load_model(PATH, network={card.network.removeprefix(OBJECT)})"
            )
        built = card.built(network)
        _require_plausible(card, weights, built)
        trained = built(card.heads)
        trained.load_state_dict(weights)
    except NotRegistered:
        raise
    except FileNotFoundError:
        raise RunError(f"{path} does not exist: no round is finished yet, or the file was lost") from None
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, RunError) as error:
        why = str(error).removeprefix(f"{path} is damaged: ")
        raise RunError(f"{path} is not a model of proxyfl or is damaged: {why}") from error
    seen = None if encoder is None else encoder_of(encoder, of_texts=card.called == "texts")
    return TrainedModel(trained.to(device).eval(), card, seen)
