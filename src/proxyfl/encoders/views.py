"""The views that an encoder is given of every training sample, drawn before it sees them."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from proxyfl.core.views import TextSettings
from proxyfl.data import augment, texts


class View(Protocol):
    """Samples → samples, changed at random."""

    def __call__(self, samples: Tensor, generator: torch.Generator, /) -> Tensor: ...


@dataclass(frozen=True)
class Views:
    """How many weak and strong views are encoded, and how they are drawn, as ``decided_by`` says."""

    weak: int
    strong: int
    draw_weak: View
    draw_strong: View
    decided_by: tuple[Any, ...]

    @property
    def counts(self) -> tuple[int, int]:
        return self.weak, self.strong

    @property
    def total(self) -> int:
        """With the sample itself."""
        return 1 + self.weak + self.strong

    def none(self) -> Views:
        """Of the same kind, but for samples that are encoded as they are."""
        return replace(self, weak=0, strong=0, decided_by=(False,))


def views_of(
    samples: Tensor, weak: int, strong: int, *, flip: bool, drawing: TextSettings | None = None
) -> Views:
    """Views of images, or of texts."""
    if texts.is_texts(samples):
        drawn = drawing or TextSettings()
        draw: tuple[View, View] = partial(texts.weak, settings=drawn), partial(texts.strong, settings=drawn)
        return Views(weak, strong, *draw, astuple(drawn))
    return Views(weak, strong, partial(augment.weak, flip=flip), partial(augment.strong, flip=flip), (flip,))
