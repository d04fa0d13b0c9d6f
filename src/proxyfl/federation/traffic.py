"""What a round sends: numbers and bytes up and down, by part of the model.

A download can be counted two ways: once per client, as it travels (``down``), or once per round, as a
broadcast (``down_once``), with what is meant for single clients beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from proxyfl.core.state import Task, Update

PARTS = ("trunk", "classifier", "heads", "extras")
WAYS = ("up", "down", "down_once")


def by_part(weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of the trunk, the classifier, the heads and the extras."""
    return _sizes(weights, extras, in_bytes=True)


def numbers_by_part(weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> dict[str, int]:
    """The same as how many numbers."""
    return _sizes(weights, extras, in_bytes=False)


def _sizes(
    weights: Mapping[str, Tensor], extras: tuple[Mapping[str, Tensor], ...], *, in_bytes: bool
) -> dict[str, int]:
    sizes = dict.fromkeys(PARTS, 0)
    for name, value in weights.items():
        part = next((part for part in ("classifier", "heads") if f"{part}." in name), "trunk")
        sizes[part] += value.numel() * (value.element_size() if in_bytes else 1)
    for tensors in extras:
        sizes["extras"] += sum(v.numel() * (v.element_size() if in_bytes else 1) for v in tensors.values())
    return sizes


@dataclass
class Traffic:
    """Numbers and bytes of one round, summed over clients."""

    bytes: dict[str, Counter[str]] = field(default_factory=lambda: {way: Counter() for way in WAYS})
    numbers: dict[str, Counter[str]] = field(default_factory=lambda: {way: Counter() for way in WAYS})

    said: set[str] = field(default_factory=set)
    """The purposes for which something was broadcast."""

    def sent(self, task: Task) -> None:
        broadcast = ({}, {}) if task.purpose in self.said else (task.weights, task.extras)
        self.said.add(task.purpose)
        self._add("down", task.weights, task.extras, task.personal)
        self._add("down_once", *broadcast, task.personal)

    def received(self, update: Update) -> None:
        self._add("up", update.weights, update.extras)

    def _add(self, way: str, weights: Mapping[str, Tensor], *extras: Mapping[str, Tensor]) -> None:
        self.bytes[way].update(by_part(weights, *extras))
        self.numbers[way].update(numbers_by_part(weights, *extras))

    def record(self) -> dict[str, object]:
        """Totals of both, the bytes of each way by part, and below ``numbers`` the numbers by part."""
        return {
            **{f"bytes_{way}": sum(sizes.values()) for way, sizes in self.bytes.items()},
            **{f"numbers_{way}": sum(sizes.values()) for way, sizes in self.numbers.items()},
            **{way: dict(sizes) for way, sizes in self.bytes.items()},
            "numbers": {way: dict(sizes) for way, sizes in self.numbers.items()},
        }
