"""Weights in two halves, sigma and psi, whose sum is the network's: FedMatch trains them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from proxyfl.core.state import Tensors


def decompose(weights: Mapping[str, Tensor], share: float = 0.2) -> tuple[Tensors, Tensors]:
    """(sigma, psi): all tensors, and ``share`` of those that are weights of convolutions or linear maps."""
    split = {name: value for name, value in weights.items() if value.is_floating_point() and value.ndim >= 2}
    return dict(weights), {name: share * value for name, value in split.items()}


def compose(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], threshold: float = 5e-6) -> Tensors:
    """sigma + psi, with entries of psi below the threshold as zero."""
    kept = {name: torch.where(value.abs() < threshold, 0.0, value) for name, value in psi.items()}
    return {name: value + kept[name] if name in kept else value for name, value in sigma.items()}


def decomposition_penalty(sigma: Sequence[Tensor], psi: Sequence[Tensor], l2: float, l1: float) -> Tensor:
    """l2 ||sigma - psi||^2 + l1 ||psi||_1, summed over the tensors."""
    pairs = zip(sigma, psi, strict=True)
    return torch.stack([l2 * (s - p).square().sum() + l1 * p.abs().sum() for s, p in pairs]).sum()


def sparse_delta(new: Tensor, old: Tensor, threshold: float) -> tuple[Tensor, int]:
    """What the receiver of the changes beyond the threshold ends up with, and how many those are."""
    moved = (new - old).abs() > threshold
    return torch.where(moved, new, old), int(moved.sum())


def halves(weights: Mapping[str, Tensor]) -> tuple[Tensors, Tensors]:
    """(sigma, psi) of what travels, by the network's names."""
    found: dict[str, Tensors] = {"sigma": {}, "psi": {}}
    for name, value in weights.items():
        half, _, rest = name.partition(".")
        found[half][rest] = value
    return found["sigma"], found["psi"]


def joined(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor]) -> Tensors:
    """What travels: both halves under names of their own."""
    named = {f"sigma.{name}": value for name, value in sigma.items()}
    return named | {f"psi.{name}": value for name, value in psi.items()}
