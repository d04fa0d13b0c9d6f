"""A round's updates on disk, read one at a time or in blocks: memory does not grow with participants."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import overload

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from proxyfl.aggregation.change import scaled_down, shorter
from proxyfl.core.files import SPOOL
from proxyfl.core.state import Tensors

BLOCK = 1 << 22
"""Numbers of all updates together that are in memory at once."""

Slice = tuple[str, int, int]
"""Rows of a tensor: its name, the first row and the one behind the last."""


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
            # Rounds that end in an error settle nothing.
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        file = self._folder / f"{len(self.files)}.safetensors"
        file.write_bytes(save(dict(tensors)))
        self.files.append(file)

    def close(self) -> None:
        if self.files:
            shutil.rmtree(self._folder, ignore_errors=True)


class Updates(Sequence[Tensors]):
    """A round's updates on disk, as the weights ``old`` that were sent out name their tensors.

    ``factors`` scale each one's change down as it is read.
    """

    def __init__(self, old: Tensors, folder: Path | None = None) -> None:
        self.old, self.names = old, sorted(old)
        self.factors: list[float] = []
        self._spool = Spool(folder)

    def __len__(self) -> int:
        return len(self._spool.files)

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        self._spool.add(tensors)
        self.factors.append(1.0)

    def close(self) -> None:
        self._spool.close()

    @overload
    def __getitem__(self, place: int) -> Tensors: ...

    @overload
    def __getitem__(self, place: slice) -> list[Tensors]: ...

    def __getitem__(self, place: int | slice) -> Tensors | list[Tensors]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        with safe_open(self._spool.files[place], "pt") as file:
            tensors = {name: file.get_tensor(name) for name in self.names}
        return scaled_down(tensors, self.old, self.factors[place])

    def blocks(self) -> Iterator[tuple[list[Slice], Tensor]]:
        """Some rows of some tensors at a time, of all updates: (M, numbers) in float64."""
        for rows in self._plan():
            yield rows, torch.stack([self._part(place, rows) for place in range(len(self))])

    def squares(self) -> Tensor:
        """Squared distances (M, M) between the updates, over their floating tensors."""
        total = torch.zeros(len(self), len(self), dtype=torch.float64)
        for rows, values in self.blocks():
            counted = values[:, self._floating(rows)]
            for place, row in enumerate(counted):
                total[place] += (counted - row).square().sum(1)
        return total

    def empty(self) -> Tensors:
        """Room for a result, of the form of one update, in float64."""
        return {name: torch.empty_like(self.old[name], dtype=torch.float64) for name in self.names}

    def put(self, result: Tensors, rows: list[Slice], values: Tensor) -> None:
        """A block's results where they belong."""
        sizes = [_rows(result[name], start, stop).numel() for name, start, stop in rows]
        for (name, start, stop), part in zip(rows, torch.split(values, sizes), strict=True):
            _rows(result[name], start, stop).copy_(part.view(_rows(result[name], start, stop).shape))

    def typed(self, result: Tensors) -> Tensors:
        """A result as updates have it: whole numbers rounded, types their own."""
        return {
            name: (result[name] if old.is_floating_point() else result[name].round()).to(old.dtype)
            for name, old in self.old.items()
        }

    def _plan(self) -> Iterator[list[Slice]]:
        room = max(1, BLOCK // max(1, len(self)))
        block, used = list[Slice](), 0
        for name in self.names:
            tensor = self.old[name]
            count = len(tensor) if tensor.dim() else 1
            width = max(1, tensor.numel() // max(1, count))
            start = 0
            while start < count:
                if block and used + width > room:
                    yield block
                    block, used = [], 0
                stop = min(count, start + max(1, (room - used) // width))
                block.append((name, start, stop))
                used += (stop - start) * width
                start = stop
        if block:
            yield block

    def _part(self, place: int, rows: list[Slice]) -> Tensor:
        with safe_open(self._spool.files[place], "pt") as file:
            parts = [
                shorter(
                    file.get_slice(name)[start:stop] if self.old[name].dim() else file.get_tensor(name),
                    _rows(self.old[name], start, stop),
                    self.factors[place],
                )
                .double()
                .flatten()
                for name, start, stop in rows
            ]
        return torch.cat(parts)

    def _floating(self, rows: list[Slice]) -> Tensor:
        flags = [
            torch.full((_rows(self.old[name], start, stop).numel(),), self.old[name].is_floating_point())
            for name, start, stop in rows
        ]
        return torch.cat(flags)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor[start:stop] if tensor.dim() else tensor
