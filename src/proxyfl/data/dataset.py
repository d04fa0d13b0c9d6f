"""What a data source delivers: images or vectors, labels, and what is known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.text import in_words
from proxyfl.data.files import memory_limit
from proxyfl.data.numbers import is_vectors
from proxyfl.data.texts import is_texts, widened
from proxyfl.data.vectors import is_encoded


@dataclass(frozen=True)
class Split:
    """Images as uint8 (N, channels, height, width), possibly memory-mapped, or vectors as float32 (N, d), and
    their labels (N,) int64. Training samples of a frozen encoder are its float16 features (N, views, d).
    Texts are uint8 (N, bytes) (``data/texts.py``).
    """

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Split:
        return Split(self.images[index], self.labels[index])

    @property
    def called(self) -> str:
        """What there are, in words."""
        if is_texts(self.images):
            return "texts"
        return "vectors" if is_vectors(self.images) or is_encoded(self.images) else "images"


@dataclass(frozen=True)
class Encoded:
    """What vectors are features of: images of ``channels`` and ``image_size``, or texts (both are 0), by the
    encoder with this name and hash. Each training sample comes with so many ``weak`` views, then strong ones.
    """

    encoder: str
    hash: str
    channels: int
    image_size: int
    weak: int


@dataclass(frozen=True)
class Dataset:
    """A training and a test split with their classes and normalisation. :meth:`Dataset.of` makes your own.

    >>> import proxyfl
    >>> data = proxyfl.load_dataset("digits")
    >>> len(data.train), len(data.test), data.channels, data.image_size
    (1300, 497, 1, 8)

    ``full_size`` is the number of training images of the complete set; if fewer are available, ``partial``
    describes them. ``flip`` states whether a mirrored image keeps its class. For vectors, ``channels`` is the
    number of features, ``mean`` and ``std`` have one number for each, and ``image_size`` is 0. For texts both
    are 0: a frozen encoder has to turn them into vectors first (``proxyfl.encode``).
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
    validation: Split | None = None
    """Images of the validation split, if the data has one."""
    holders: Tensor | None = None
    """The number of the client that each training image belongs to, if the data names clients."""
    clients: tuple[str, ...] = ()
    """The names of these clients."""
    features: tuple[str, ...] = ()
    """The names of the features of vectors, if the data has them; for texts, that of their column."""
    encoded: Encoded | None = None
    """The original samples, if these were computed by a frozen encoder."""
    notes: tuple[str, ...] = ()
    """Notes on how your own data was read."""

    def __repr__(self) -> str:
        counts = f"{len(self.train):,} to train, {len(self.test):,} to test"
        return f"<Dataset '{self.name}': {counts}, {len(self.classes)} classes>"

    @classmethod
    def of(
        cls,
        images: Any,
        labels: Any = None,
        *,
        test: Any,
        classes: Sequence[str] | int | None = None,
        name: str = "mine",
        flip: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Dataset:
        """A data set from tensors or arrays, or from a ``torch.utils.data.Dataset`` in place of both.

        Images are square and grey or in colour, uint8 or between 0 and 1, with the channels first or last.
        Vectors are numbers of any size, of shape (N, d); each feature is standardised with the training
        split. Texts are a list of strings.
        A label of -1 means that the class is unknown: such an image is always unlabelled. ``test`` is a pair
        (images, labels) or a Dataset. Mean and standard deviation are computed unless they are given;
        ``flip`` states whether a mirrored image keeps its class.

        >>> import proxyfl, torch
        >>> images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
        >>> labels[30:] = -1
        >>> data = proxyfl.Dataset.of(images, labels, test=(images[:30], labels[:30]))
        >>> len(data.train), data.classes
        (60, ('0', '1', '2'))
        """
        from proxyfl.data.own import class_names, pair, split_of
        from proxyfl.data.sources.base import sample_statistics

        train, held = split_of(images, labels, "training"), split_of(*pair(test), "test")
        if is_texts(train.images) and is_texts(held.images):
            width = max(train.images.shape[1], held.images.shape[1])
            train, held = (Split(widened(part.images, width), part.labels) for part in (train, held))
        if train.images.shape[1:] != held.images.shape[1:]:
            shapes = f"{tuple(train.images.shape[1:])} and {tuple(held.images.shape[1:])}"
            raise DataError(f"training and test {train.called} differ in shape: {shapes}")
        if bool((held.labels < 0).any()):
            raise DataError(f"test {held.called} need labels; leave out those whose class is unknown")
        if int(train.labels.max()) < 0:
            raise DataError(f"none of the training {train.called} has a label; label a few of every class")
        names = class_names(classes, int(max(train.labels.max(), held.labels.max())) + 1)
        found = sample_statistics(train.images.numpy()) if mean is None or std is None else (mean, std)
        return cls(name, train, held, names, tuple(found[0]), tuple(found[1]), flip, len(train))

    @property
    def knows_all(self) -> bool:
        """Whether the class of every training image is known: nothing is hidden from those who measure."""
        return not bool((self.train.labels < 0).any())

    @property
    def channels(self) -> int:
        return 0 if self.is_texts else int(self.train.images.shape[-1 if self.is_vectors else 1])

    @property
    def image_size(self) -> int:
        return 0 if self.is_vectors or self.is_texts else int(self.train.images.shape[-1])

    @property
    def called(self) -> str:
        """What people have, in words, also where a frozen encoder has made features of it."""
        if self.encoded is None:
            return self.train.called
        return "images" if self.encoded.image_size else "texts"

    @property
    def is_vectors(self) -> bool:
        return self.train.called == "vectors"

    @property
    def is_texts(self) -> bool:
        return self.train.called == "texts"

    def resized(self, size: int) -> Dataset:
        """Every image at ``size`` × ``size``, as uint8."""
        if self.train.called != "images":
            raise ConfigError(
                f"data.image_size = {size} is for images, and '{self.name}' holds {self.train.called}; "
                "set it to 0"
            )
        if size < 8:
            raise ConfigError(f"data.image_size = {size} is too small; the networks need 8 or more")
        if size == self.image_size and self.train.images.shape[-2] == size:
            return self
        needed = (len(self.train) + len(self.test)) * self.channels * size * size
        if needed > memory_limit():
            raise ConfigError(
                f"data.image_size = {size} needs {in_words(needed)} of memory; set a smaller one"
            )
        chosen = None if self.validation is None else resize(self.validation, size)
        return replace(self, train=resize(self.train, size), test=resize(self.test, size), validation=chosen)

    def subset(self, count: int, generator: torch.Generator) -> Dataset:
        """``count`` training images drawn without replacement, kept in their order; the test split stays."""
        if not 0 < count <= len(self.train):
            raise ConfigError(f"data.subset asks for {count} of {len(self.train)} training images")
        if count == len(self.train):
            return self
        chosen = torch.randperm(len(self.train), generator=generator)[:count].sort().values
        holders = None if self.holders is None else self.holders[chosen]
        return replace(self, train=self.train.take(chosen), holders=holders)


def resize(split: Split, size: int, chunk: int = 4096) -> Split:
    """Every image at ``size`` × ``size``."""
    parts = []
    for images in torch.split(split.images, chunk):
        scaled = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
        parts.append(scaled.round_().clamp_(0, 255).to(torch.uint8))
    return Split(torch.cat(parts), split.labels)
