"""Named tensors as few long ones: one operation for many names, where networks have many small tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

LONGEST = 1 << 22
"""Numbers in a long tensor at most, unless one named tensor has more: copies stay small beside a network."""


class Layout:
    """Which names lie one behind the other in which long tensor; each has one dtype."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: value.shape for name, value in tensors.items()}
        self.rows: list[tuple[str, ...]] = []
        for dtype in dict.fromkeys(value.dtype for value in tensors.values()):
            row, length = list[str](), 0
            for name, value in tensors.items():
                if value.dtype != dtype:
                    continue
                if row and length + value.numel() > LONGEST:
                    self.rows.append(tuple(row))
                    row, length = [], 0
                row.append(name)
                length += value.numel()
            self.rows.append(tuple(row))

    def join(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """The long tensors, copied together."""
        return [torch.cat([tensors[name].reshape(-1) for name in row]) for row in self.rows]

    def part(self, long: Sequence[Tensor]) -> Tensors:
        """The named tensors again, in the order they were given in: views of the long ones."""
        found: Tensors = {}
        for row, whole in zip(self.rows, long, strict=True):
            lengths = [self.shapes[name].numel() for name in row]
            found |= zip(row, torch.split(whole, lengths), strict=True)
        return {name: found[name].view(shape) for name, shape in self.shapes.items()}

    def places(self, names: Collection[str]) -> list[Tensor]:
        """Where the numbers of these names lie in each long tensor."""
        found = []
        for row in self.rows:
            counts = torch.tensor([self.shapes[name].numel() for name in row])
            chosen = torch.tensor([name in names for name in row])
            found.append(chosen.repeat_interleave(counts).nonzero().flatten())
        return found
