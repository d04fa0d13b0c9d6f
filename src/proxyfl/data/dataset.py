"""What a data source delivers: uint8 images, labels, and what is known about them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.errors import ConfigError
from proxyfl.data.files import in_words, memory_limit


@dataclass(frozen=True)
class Split:
    """Images as uint8 (N, channels, height, width), possibly memory-mapped, and their labels (N,) int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Split:
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with what fits them.

    ``full_size`` is the number of training images of the complete set; where fewer are at hand,
    ``partial`` says so in words. ``flip`` tells whether a mirrored image keeps its class.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flip: bool
    full_size: int
    partial: str = ""

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[1])

    @property
    def image_size(self) -> int:
        return int(self.train.images.shape[-1])

    def resized(self, size: int) -> Dataset:
        """Every image at ``size`` × ``size``, as uint8."""
        if size < 8:
            raise ConfigError(f"data.image_size = {size} is too small; the networks need 8 or more")
        if size == self.image_size and self.train.images.shape[-2] == size:
            return self
        needed = (len(self.train) + len(self.test)) * self.channels * size * size
        if needed > memory_limit():
            raise ConfigError(
                f"data.image_size = {size} needs {in_words(needed)} of memory; set a smaller one"
            )
        return replace(self, train=resize(self.train, size), test=resize(self.test, size))

    def subset(self, count: int, generator: torch.Generator) -> Dataset:
        """``count`` training images drawn without replacement, kept in their order; the test split stays."""
        if not 0 < count <= len(self.train):
            raise ConfigError(f"data.subset asks for {count} of {len(self.train)} training images")
        if count == len(self.train):
            return self
        chosen = torch.randperm(len(self.train), generator=generator)[:count].sort().values
        return replace(self, train=self.train.take(chosen))


def resize(split: Split, size: int, chunk: int = 4096) -> Split:
    """Every image at ``size`` × ``size``."""
    parts = []
    for images in torch.split(split.images, chunk):
        scaled = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
        parts.append(scaled.round_().clamp_(0, 255).to(torch.uint8))
    return Split(torch.cat(parts), split.labels)
