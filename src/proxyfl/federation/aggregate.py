"""The weighted mean of updates, folded one by one so that memory does not grow with participants."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from proxyfl.core.state import Tensors


class WeightedMean:
    """A running weighted mean of named tensors, buffers included.

    Sums are kept in float64, so that the order of magnitude of weights does not matter; integer tensors
    (step counters) come back as integers, rounded down.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._sums: Tensors = {}
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        self.total += weight
        for name, value in tensors.items():
            term = value.to(torch.float64) * weight
            if name in self._sums:
                self._sums[name] += term
            else:
                self._sums[name], self._dtypes[name] = term, value.dtype

    def mean(self) -> Tensors:
        return {name: (value / self.total).to(self._dtypes[name]) for name, value in self._sums.items()}


class SpooledMean:
    """The same mean where weights are known only after the last update: updates wait on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="spool-", dir=folder))
        self._count = 0

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        save_file(dict(tensors), self._folder / f"{self._count}.safetensors")
        self._count += 1

    def mean(self, weights: Sequence[float]) -> Tensors:
        running = WeightedMean()
        try:
            for position, weight in zip(range(self._count), weights, strict=True):
                running.add(load_file(self._folder / f"{position}.safetensors"), weight)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return running.mean()
