"""What a round sends: bytes up and down, by part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from proxyfl.core.state import Task, Update


def by_part(weights: Mapping[str, Tensor], extras: Mapping[str, Tensor]) -> dict[str, int]:
    """Bytes of the trunk, the classifier, the heads and the extras."""
    sizes = dict.fromkeys(("trunk", "classifier", "heads", "extras"), 0)
    for name, value in weights.items():
        part = next((part for part in ("classifier", "heads") if f"{part}." in name), "trunk")
        sizes[part] += value.numel() * value.element_size()
    sizes["extras"] = sum(value.numel() * value.element_size() for value in extras.values())
    return sizes


@dataclass
class Traffic:
    """Bytes of one round, summed over clients."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def sent(self, task: Task) -> None:
        _add(self.down, by_part(task.weights, task.extras))
        _add(self.down, by_part({}, task.personal))

    def received(self, update: Update) -> None:
        _add(self.up, by_part(update.weights, update.extras))

    def record(self) -> dict[str, object]:
        return {
            "bytes_up": sum(self.up.values()),
            "bytes_down": sum(self.down.values()),
            "up": self.up,
            "down": self.down,
        }


def _add(total: dict[str, int], sizes: Mapping[str, int]) -> None:
    for part, size in sizes.items():
        total[part] = total.get(part, 0) + size
