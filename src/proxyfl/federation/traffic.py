"""What a round sends: numbers and bytes up and down, by part of the model.

A download can be counted two ways: once per client, as it travels (``down``), or once per round, as a
broadcast (``down_once``), with what is meant for single clients beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from torch import Tensor

from proxyfl.core.flat import Flat, Layout
from proxyfl.core.state import Task, Tensors, Update

PARTS = ("trunk", "classifier", "heads", "extras")
WAYS = ("up", "down", "down_once")


Both = tuple[dict[str, int], dict[str, int]]
"""Bytes and numbers, by part."""


def by_part(weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of the trunk, the classifier, the heads and the extras."""
    return _both(weights, *extras)[0]


def numbers_by_part(weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> dict[str, int]:
    """The same as how many numbers."""
    return _both(weights, *extras)[1]


def _both(weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> Both:
    bytes, numbers = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    named = [(_part(name), value) for name, value in weights.items()]
    for part, value in (*named, *(("extras", value) for tensors in extras for value in tensors.values())):
        count = value.numel()
        numbers[part] += count
        bytes[part] += count * value.element_size()
    return bytes, numbers


@cache
def _part(name: str) -> str:
    return next((part for part in ("classifier", "heads") if f"{part}." in name), "trunk")


@dataclass
class Traffic:
    """Numbers and bytes of one round, summed over clients."""

    bytes: dict[str, Counter[str]] = field(default_factory=lambda: {way: Counter() for way in WAYS})
    numbers: dict[str, Counter[str]] = field(default_factory=lambda: {way: Counter() for way in WAYS})
    _tasks: dict[int, tuple[Both, Both]] = field(default_factory=dict)
    _last: tuple[Tensors, Tensors, Both] | None = None
    _up: tuple[Layout, Both] | None = None

    said: set[str] = field(default_factory=set)
    """The purposes for which something was broadcast."""

    def sent(self, task: Task) -> None:
        first = task.purpose not in self.said
        self.said.add(task.purpose)
        broadcast, personal = self._broadcast(task), _both({}, task.personal)
        self._count("down", broadcast)
        self._count("down", personal)
        self._count("down_once", broadcast if first else _both({}))
        self._count("down_once", personal)
        self._tasks[task.client] = broadcast, personal

    def _broadcast(self, task: Task) -> Both:
        """The size of what all tasks of a round have in common, counted once as long as it is the same."""
        if self._last is None or self._last[0] is not task.weights or self._last[1] is not task.extras:
            self._last = task.weights, task.extras, _both(task.weights, task.extras)
        return self._last[2]

    def unsent(self, client: int) -> None:
        """Take back what was counted for a client that could not be asked; the broadcast went to others."""
        broadcast, personal = self._tasks.pop(client)
        self._count("down", broadcast, -1)
        self._count("down", personal, -1)
        self._count("down_once", personal, -1)

    def received(self, update: Update) -> None:
        self._count("up", _both({}, update.extras))
        for weights in (update.weights, *update.again):
            self._count("up", self._uploaded(weights))

    def _uploaded(self, weights: Tensors) -> Both:
        """The size of a client's weights, counted once as long as clients send the same ones."""
        if not isinstance(weights, Flat):
            return _both(weights)
        if self._up is None or self._up[0] != weights.layout:
            self._up = weights.layout, _both(weights)
        return self._up[1]

    def _count(self, way: str, sizes: Both, sign: int = 1) -> None:
        for counter, size in zip((self.bytes[way], self.numbers[way]), sizes, strict=True):
            for part, count in size.items():
                counter[part] += sign * count

    def record(self) -> dict[str, object]:
        """Totals of both, the bytes of each way by part, and below ``numbers`` the numbers by part."""
        return {
            **{f"bytes_{way}": sum(sizes.values()) for way, sizes in self.bytes.items()},
            **{f"numbers_{way}": sum(sizes.values()) for way, sizes in self.numbers.items()},
            **{way: dict(sizes) for way, sizes in self.bytes.items()},
            "numbers": {way: dict(sizes) for way, sizes in self.numbers.items()},
        }
