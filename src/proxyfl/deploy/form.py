"""What server and sites of a federation must agree on: the classes, and the form of their samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from proxyfl.core.errors import ConfigError
from proxyfl.core.settings import setting
from proxyfl.deploy.names import require_texts

FORMAT = 1
MIN_SIZE = 8


@dataclass(frozen=True)
class ImageForm:
    """What server and sites must agree on: the classes, in order, and the form of an image."""

    format: int = setting(FORMAT, "version of this file", low=1)
    insecure: bool = setting(False, "no encryption and no authentication: for trying out on one machine")
    classes: tuple[str, ...] = setting((), "class names in order; a class's place is its number")
    channels: int = setting(
        3, "channels of an image, 3 or 1 (grey); of vectors the features; of texts 0", low=0
    )
    image_size: int = setting(32, "side in pixels to which images are resized; 0: vectors or texts", low=0)
    encoded: int = setting(
        0, "features that a frozen encoder computes of an image or a text at the sites; 0: no encoder", low=0
    )
    features: tuple[str, ...] = setting(
        (), "columns of vectors in tables, in order; empty: all of numbers; of texts, the one they are in"
    )
    mean: tuple[float, ...] = setting((), "mean of each channel on the scale 0 to 1, or of each feature")
    std: tuple[float, ...] = setting((), "standard deviation of each channel or feature")
    flip: bool = setting(False, "whether a mirrored image keeps its class")
    holdout: float = setting(
        0.0, "share of labelled images that are held out to measure accuracy", low=0, high=0.9
    )

    @property
    def called(self) -> str:
        """What sites have, in words."""
        return "images" if self.image_size else "vectors" if self.channels else "texts"

    @property
    def taken(self) -> tuple[int, int]:
        """Channels and size of what the network takes: a frozen encoder's features, or what sites have."""
        return (self.encoded, 0) if self.encoded else (self.channels, self.image_size)

    def check(self) -> None:
        """Raise :class:`ConfigError` where the settings cannot be meant."""
        if self.format != FORMAT:
            raise ConfigError(f"it has format {self.format}; this version of proxyfl reads {FORMAT}")
        require_texts("classes", self.classes)
        if len(self.classes) < 2:
            raise ConfigError("classes must name two classes or more, as in classes = ['cat', 'dog']")
        if self.image_size and self.channels not in (1, 3):
            raise ConfigError(f"channels = {self.channels} is not one of 1, 3; vectors need image_size = 0")
        if 0 < self.image_size < MIN_SIZE:
            raise ConfigError(f"image_size = {self.image_size} is below {MIN_SIZE}")
        if self.called == "texts" and not self.encoded:
            raise ConfigError("channels = 0 and image_size = 0 mean texts, which need a frozen encoder")
        if self.called == "vectors" and self.encoded:
            raise ConfigError("a frozen encoder takes images or texts, not vectors; set encoded = 0")
        count = self.taken[0]
        require_texts("features", self.features)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != count or not all(map(_is_number, values)):
                raise ConfigError(f"{name} must be {count} number(s), one for each channel or feature")
        if min(self.std) <= 0:
            raise ConfigError("std must be above 0 for every channel or feature")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
