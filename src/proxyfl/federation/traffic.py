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

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    down_once: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)

    def sent(self, task: Task) -> None:
        everyone = not self.down
        self.down.update(by_part(task.weights, task.extras, task.personal))
        self.numbers["down"] += sum(numbers_by_part(task.weights, task.extras, task.personal).values())
        broadcast = (task.weights, task.extras) if everyone else ({}, {})
        self.down_once.update(by_part(*broadcast, task.personal))
        self.numbers["down_once"] += sum(numbers_by_part(*broadcast, task.personal).values())

    def received(self, update: Update) -> None:
        self.up.update(by_part(update.weights, update.extras))
        self.numbers["up"] += sum(numbers_by_part(update.weights, update.extras).values())

    def record(self) -> dict[str, object]:
        ways = {"up": self.up, "down": self.down, "down_once": self.down_once}
        return {
            **{f"bytes_{way}": sum(sizes.values()) for way, sizes in ways.items()},
            **{f"numbers_{way}": self.numbers[way] for way in ways},
            **{way: dict(sizes) for way, sizes in ways.items()},
        }
