"""Named tensors as few long ones: one operation for many names, where networks have many small tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

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
        self.dtypes: list[torch.dtype] = []
        for dtype in dict.fromkeys(value.dtype for value in tensors.values()):
            row, length = list[str](), 0
            for name, value in tensors.items():
                if value.dtype != dtype:
                    continue
                if row and length + value.numel() > LONGEST:
                    self.rows.append(tuple(row))
                    self.dtypes.append(dtype)
                    row, length = [], 0
                row.append(name)
                length += value.numel()
            self.rows.append(tuple(row))
            self.dtypes.append(dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self is other or (
            self.rows == other.rows and self.dtypes == other.dtypes and self.shapes == other.shapes
        )

    __hash__ = None  # type: ignore[assignment]

    def join(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """The long tensors, copied together."""
        return [torch.cat([tensors[name].reshape(-1) for name in row]) for row in self.rows]

    def part(self, long: Sequence[Tensor]) -> Tensors:
        """The named tensors again, in the order they were given in: views of the long ones."""
        found: Tensors = {}
        for row, whole in zip(self.rows, long, strict=True):
            lengths = [self.shapes[name].numel() for name in row]
            found |= zip(row, torch.split(whole, lengths), strict=True)
        return {
            name: found[name] if len(shape) == 1 else found[name].view(shape)
            for name, shape in self.shapes.items()
        }

    def places(self, names: Collection[str]) -> list[Tensor]:
        """Where the numbers of these names lie in each long tensor."""
        found = []
        for row in self.rows:
            counts = torch.tensor([self.shapes[name].numel() for name in row])
            chosen = torch.tensor([name in names for name in row])
            found.append(chosen.repeat_interleave(counts).nonzero().flatten())
        return found


class Flat(dict[str, Tensor]):
    """Named tensors that are views of long ones, so that who looks at every number need not join them again.
    Values may change in place; names stay as they are.
    """

    def __init__(self, layout: Layout, long: Sequence[Tensor]) -> None:
        if (found := [value.dtype for value in long]) != layout.dtypes:
            raise ValueError(f"these tensors are {found}, not {layout.dtypes}")
        super().__init__(layout.part(long))
        self.layout, self.long = layout, list(long)

    @classmethod
    @torch.no_grad()
    def of(cls, tensors: Mapping[str, Tensor]) -> Flat:
        """Copies on the CPU, free of any graph."""
        layout = Layout(tensors)
        return cls(layout, layout.join({name: value.cpu() for name, value in tensors.items()}))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layout, self.long)

    def _fixed(self, *given: Any, **named: Any) -> NoReturn:
        raise TypeError("the names of these tensors are fixed; change a copy: dict(tensors)")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _fixed


def compact(tensors: Mapping[str, Tensor]) -> Tensors:
    """The same tensors for who keeps them: a view of a longer tensor is copied, so that only it stays."""
    return {
        name: value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
        for name, value in tensors.items()
    }
