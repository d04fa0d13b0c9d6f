"""The weighted mean of updates, folded one by one so that memory does not grow with participants."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from proxyfl.core.state import Tensors

SPOOL = "spool-"
"""How the names of folders with waiting updates begin."""


class WeightedMean:
    """A running weighted mean of named tensors, buffers included.

    Sums are kept in float64, so that the order of magnitude of weights does not matter; integer tensors
    (step counters) come back as integers, rounded to the nearest.
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
        means = {name: value / self.total for name, value in self._sums.items()}
        return {
            name: (mean if self._dtypes[name].is_floating_point else mean.round()).to(self._dtypes[name])
            for name, mean in means.items()
        }


class Spool:
    """Updates that wait on disk, in a folder of their own below ``parent`` that the first one makes."""

    def __init__(self, parent: Path | None = None) -> None:
        self.files: list[Path] = []
        self._parent = parent

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        if not self.files:
            if self._parent:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=SPOOL, dir=self._parent))
        file = self._folder / f"{len(self.files)}.safetensors"
        file.write_bytes(save(dict(tensors)))
        self.files.append(file)

    def close(self) -> None:
        if self.files:
            shutil.rmtree(self._folder, ignore_errors=True)


class SpooledMean:
    """The same mean where weights are known only after the last update: updates wait on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._spool = Spool(folder)

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        self._spool.add(tensors)

    def mean(self, weights: Sequence[float]) -> Tensors:
        running = WeightedMean()
        try:
            for file, weight in zip(self._spool.files, weights, strict=True):
                running.add(load_file(file), weight)
        finally:
            self._spool.close()
        return running.mean()
