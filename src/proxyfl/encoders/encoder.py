"""An encoder: a network that is not trained, and how images or texts are prepared for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.settings import OBJECT
from proxyfl.core.state import content_hash
from proxyfl.data.texts import is_texts, unpack


@dataclass(frozen=True, eq=False)
class Frozen:
    """What encoders of images and of texts share."""

    takes: ClassVar[str] = ""

    network: Callable[[Any], Tensor]
    name: str = field(default="", kw_only=True)
    weights_hash: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if not (isinstance(self.network, nn.Module) or (callable(self.network) and self.weights_hash)):
            raise ConfigError("an encoder is an nn.Module; for any other function also give its weights_hash")
        if isinstance(self.network, nn.Module):
            self.network.eval().requires_grad_(False)

    @property
    def called(self) -> str:
        """Its name, or what stands for it."""
        return self.name or f"{OBJECT}{type(self.network).__name__}"

    @cached_property
    def hash(self) -> str:
        """Of its weights, its layers and its preparation of samples."""
        network, weights = self.network, self.weights_hash
        if not weights and isinstance(network, nn.Module):
            weights = content_hash(network.state_dict()) + str(network)
        return hashlib.sha256(json.dumps([weights, *self.preparation]).encode()).hexdigest()

    @property
    def preparation(self) -> tuple[Any, ...]:
        """What decides features beside the network."""
        return ()

    def prepared(self, samples: Tensor) -> Any:
        """Samples as the network takes them."""
        raise NotImplementedError

    @torch.inference_mode()
    def __call__(self, samples: Tensor) -> Tensor:
        """Features (N, d) of samples as a data set holds them, in float16."""
        given = "texts" if is_texts(samples) else "images"
        if given != self.takes:
            raise DataError(
                f"{self.called} takes {self.takes}, but these are {given}; choose another encoder"
            )
        try:
            found = self.network(self.prepared(samples))
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            shape = "" if self.takes == "texts" else f" of shape {tuple(samples.shape[1:])}"
            raise DataError(f"{self.called} cannot take {self.takes}{shape}: {error}") from error
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(samples):
            gave = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise DataError(
                f"{self.called} returned {gave} for {len(samples)} {self.takes}; an encoder "
                "returns one vector for each"
            )
        features = found.half()
        if not bool(features.isfinite().all()):
            raise DataError(f"{self.called} returned features that are not finite in 16 bits")
        return features


@dataclass(frozen=True, eq=False)
class TextEncoder(Frozen):
    """A frozen encoder of texts: ``network`` takes a list of N strings and returns (N, d). If it is not an
    ``nn.Module`` it needs a ``weights_hash`` that identifies what it computes.

    >>> import proxyfl, torch
    >>> def vowels(texts):
    ...     return torch.tensor([[float(text.count(letter)) for letter in "aeiou"] for text in texts])
    >>> proxyfl.TextEncoder(vowels, weights_hash="1").called
    'object:function'
    """

    takes: ClassVar[str] = "texts"

    def prepared(self, samples: Tensor) -> list[str]:
        return unpack(samples)


@dataclass(frozen=True, eq=False)
class Encoder(Frozen):
    """A frozen encoder of images, and how images are prepared for it.

    ``network`` takes float32 images (N, channels, size, size) and returns (N, d). Images are resized to
    ``size`` (0: not resized) and cropped to the central square of ``crop`` pixels (0: not cropped), grey
    images get three channels if ``channels`` is 3, and values are (x / 255 - mean) / std. A ``network`` that
    is not an ``nn.Module`` needs a ``weights_hash`` that identifies what it computes.

    >>> import proxyfl, torch
    >>> encoder = proxyfl.Encoder(torch.nn.Flatten(), size=4)
    >>> encoder(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 48])
    """

    takes: ClassVar[str] = "images"

    size: int = 0
    channels: int = 0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: int = 0
    resample: str = "bilinear"

    @property
    def preparation(self) -> tuple[Any, ...]:
        return self.size, self.channels, self.mean, self.std, self.crop, self.resample

    def prepared(self, samples: Tensor) -> Tensor:
        pixels = samples.float() / 255
        if self.channels == 3 and pixels.shape[1] == 1:
            pixels = pixels.expand(-1, 3, -1, -1)
        if self.channels and pixels.shape[1] != self.channels:
            raise DataError(
                f"{self.called} takes images of {self.channels} channel(s), these have {pixels.shape[1]}"
            )
        if self.size and pixels.shape[-2:] != (self.size, self.size):
            pixels = F.interpolate(pixels, (self.size, self.size), mode=self.resample, antialias=True)
            pixels = pixels.clamp(0, 1)
        if self.crop:
            edge = (pixels.shape[-1] - self.crop) // 2
            pixels = pixels[..., edge : edge + self.crop, edge : edge + self.crop]
        mean, std = (torch.tensor(part).reshape(1, -1, 1, 1) for part in (self.mean, self.std))
        return (pixels - mean) / std
