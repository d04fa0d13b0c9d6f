"""The change of weights that a client brings: how long it is, and the same change made shorter."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from proxyfl.core.state import Tensors


def change_length(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> float:
    """Euclidean length of the change over all floating tensors, the same in whatever order they come."""
    squares = [
        float((value - old[name].double()).square_().sum())  # the difference is one of doubles
        for name, value in new.items()
        if value.is_floating_point()
    ]
    try:
        return math.sqrt(math.fsum(squares))
    except OverflowError:
        return math.inf


def scaled_down(new: Mapping[str, Tensor], old: Mapping[str, Tensor], factor: float) -> Tensors:
    """``old`` plus ``factor`` of the change, for floating tensors; a factor of 1 or more changes nothing."""
    if factor >= 1:
        return dict(new)
    return {name: shorter(value, old[name], factor) for name, value in new.items()}


def shorter(new: Tensor, old: Tensor, factor: float) -> Tensor:
    """One tensor of :func:`scaled_down`."""
    if factor >= 1 or not new.is_floating_point():
        return new
    before = old.double()
    return (before + factor * (new.double() - before)).to(new.dtype)
