"""Texts: samples that a frozen encoder reads. How tensors hold them, and their views.

Texts are UTF-8 in a uint8 tensor (N, bytes), padded with zeros, so that they are cut, drawn and hashed as any
samples are. Views are those of "EDA" (Wei and Zou 2019): some words are dropped, and some change places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.files import memory_limit

if TYPE_CHECKING:  # files are read without torch
    import torch
    from torch import Tensor

    from proxyfl.core.views import TextSettings

Array: TypeAlias = np.ndarray[Any, Any]

MOST = 8192
"""Bytes of a text that are kept: encoders read fewer."""
NUMBERS = (0, 0)
"""Channels and size that stand for texts, where images have theirs and vectors have (features, 0)."""


def is_texts(samples: Any) -> bool:
    """Whether a tensor or an array that a data set holds is one of texts; vectors are floats there."""
    return len(samples.shape) == 2 and str(samples.dtype) in ("torch.uint8", "uint8")


def pack(texts: Sequence[str]) -> Tensor:
    """Texts as a tensor."""
    import torch

    return torch.from_numpy(packed(texts))


def packed(texts: Sequence[str]) -> Array:
    """Texts as an array. What is longer than ``MOST`` bytes is cut."""
    found = [text.replace("\0", " ").encode("utf-8", "replace")[:MOST] for text in texts]
    longest = max(map(len, found), default=1) or 1
    if len(found) * longest > memory_limit():
        raise DataError(f"the texts need {in_words(len(found) * longest)}, too much for this machine")
    array = np.zeros((len(found), longest), np.uint8)
    for row, content in enumerate(found):
        array[row, : len(content)] = np.frombuffer(content, np.uint8)
    return array


def unpack(samples: Tensor) -> list[str]:
    """The texts in a tensor; a letter that was cut through is left out."""
    return [bytes(row).rstrip(b"\0").decode("utf-8", "ignore") for row in samples.numpy()]


def widened(samples: Tensor, width: int) -> Tensor:
    """The same texts in so many bytes."""
    import torch

    return torch.nn.functional.pad(samples, (0, width - samples.shape[1]))


def lengths(samples: Tensor) -> Tensor:
    """Bytes of each text."""
    return (samples != 0).sum(1)


def weak(samples: Tensor, generator: torch.Generator, settings: TextSettings) -> Tensor:
    """Texts with a few words dropped and exchanged."""
    return pack([changed(text, generator, settings.dropout, settings.swap) for text in unpack(samples)])


def strong(samples: Tensor, generator: torch.Generator, settings: TextSettings) -> Tensor:
    """Texts with many words dropped and exchanged."""
    shares = settings.strong_dropout, settings.strong_swap
    return pack([changed(text, generator, *shares) for text in unpack(samples)])


def changed(text: str, generator: torch.Generator, dropout: float, swap: float) -> str:
    """A text each of whose words is dropped with probability ``dropout``, but never all; of those that are
    left, this share (``swap``) takes another one's place.
    """
    import torch

    words = text.split()
    kept = (torch.rand(len(words), generator=generator) >= dropout).nonzero()[:, 0].tolist()
    if not kept:
        kept = torch.randint(max(1, len(words)), (min(1, len(words)),), generator=generator).tolist()
    moved = (torch.rand(len(kept), generator=generator) < swap).nonzero()[:, 0].tolist()
    order = torch.randperm(len(moved), generator=generator).tolist()
    found = [words[place] for place in kept]
    for place, other in zip(moved, order, strict=True):
        found[place] = words[kept[moved[other]]]
    return " ".join(found)
