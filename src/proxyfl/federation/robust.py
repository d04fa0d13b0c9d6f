"""Robust aggregation: what a round's updates come to when some of them may be meant to do harm.

Of M updates x_1 … x_M, with f of them reckoned to be hostile::

    median    of each coordinate; the mean of the two in the middle where M is even
    trimmed   of each coordinate, the mean of what is left without its f smallest and f largest values
    krum      score_i = sum of the M - f - 2 smallest ||x_i - x_j||^2, j other than i; the mean of the updates
              with the smallest scores (Blanchard et al., NeurIPS 2017)
    clip      x_i <- g + min(1, C / ||x_i - g||) (x_i - g), g the weights that were sent out

All but the clipping need every update, so updates wait on disk and are read in blocks: memory does not grow
with the number of participants. Numbers are float64 on the way; whole-numbered tensors (step counters) come
back rounded. Statistics of batch norm are treated as any other number, lengths and distances included: who
could hide in them would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from proxyfl.core.state import Tensors
from proxyfl.federation.aggregate import Spool, WeightedMean

BLOCK = 1 << 22
"""Numbers of all updates together that are in memory at once."""

Slice = tuple[str, int, int]
"""Rows of a tensor: its name, the first row and the one behind the last."""


def median(values: Tensor) -> Tensor:
    """Of each column of (M, N)."""
    ordered = values.sort(0).values
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def trimmed_mean(values: Tensor, cut: int) -> Tensor:
    """Of each column of (M, N), without its ``cut`` smallest and largest values."""
    return values.sort(0).values[cut : len(values) - cut].mean(0)


def inner_range(values: Tensor, cut: int) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of each column of (M, N) once ``cut`` are gone at either end."""
    ordered = values.sort(0).values
    return ordered[cut], ordered[len(values) - 1 - cut]


def krum_scores(squares: Tensor, hostile: int) -> Tensor:
    """Each update's sum of squared distances (M, M) to its M − f − 2 nearest others."""
    count = len(squares)
    others = squares.clone().fill_diagonal_(torch.inf).sort(1).values
    return others[:, : max(1, count - hostile - 2)].sum(1)


def krum_choice(squares: Tensor, hostile: int, keep: int) -> list[int]:
    """The ``keep`` updates with the smallest scores (0: all but the hostile), in order of arrival.

    Fewer than three updates have no neighbours to judge by and are all kept.
    """
    count = len(squares)
    if count < 3:
        return list(range(count))
    order = krum_scores(squares, hostile).argsort(stable=True)
    return sorted(order[: min(keep or count - hostile, count)].tolist())


def hostile_of(count: int, share: float) -> int:
    """How many of ``count`` updates are hostile if ``share`` of them are, rounded up."""
    return math.ceil(share * count - 1e-9)


def withstood(count: int, share: float, spare: int) -> int:
    """The same, but no more than a rule can withstand that needs ``2 f + spare`` updates."""
    return max(0, min(hostile_of(count, share), (count - spare) // 2))


def change_length(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> float:
    """Euclidean length of the change over all floating tensors, the same in whatever order they come."""
    return math.sqrt(
        math.fsum(
            float((value.double() - old[name].double()).square().sum())
            for name, value in new.items()
            if value.is_floating_point()
        )
    )


def shortened(new: Mapping[str, Tensor], old: Mapping[str, Tensor], factor: float) -> Tensors:
    """``old`` plus ``factor`` of the change, for floating tensors; a factor of 1 or more changes nothing."""
    if factor >= 1:
        return dict(new)
    return {name: _shorter(value, old[name], factor) for name, value in new.items()}


def _shorter(new: Tensor, old: Tensor, factor: float) -> Tensor:
    if factor >= 1 or not new.is_floating_point():
        return new
    before = old.double()
    return (before + factor * (new.double() - before)).to(new.dtype)


class Updates:
    """A round's updates on disk, as the weights ``old`` that were sent out name their tensors.

    ``factors`` shorten each one's change as it is read.
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

    def whole(self, place: int) -> Tensors:
        """One update, shortened."""
        with safe_open(self._spool.files[place], "pt") as file:
            tensors = {name: file.get_tensor(name) for name in self.names}
        return shortened(tensors, self.old, self.factors[place])

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

    def mean(self, weights: Sequence[float], chosen: Sequence[int] | None = None) -> Tensors:
        """The weighted mean of the chosen updates (None: of all)."""
        running = WeightedMean()
        for place in range(len(self)) if chosen is None else chosen:
            running.add(self.whole(place), weights[place])
        return running.mean()

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
                _shorter(
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
