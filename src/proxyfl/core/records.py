"""Words of a round's records: the measures in its metrics, the processor's time in its timing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CPU = "cpu"
"""Processor seconds of a round on this machine, beside the durations by the clock that add up to it."""


@dataclass(frozen=True)
class Measure:
    """``name`` is what people read; of some, less is better."""

    name: str
    higher_is_better: bool = True


MEASURES = {
    "macro_f1": Measure("macro-F1"),
    "balanced_accuracy": Measure("balanced accuracy"),
    "auroc": Measure("AUROC"),
    "ece": Measure("calibration error", higher_is_better=False),
    "top5": Measure("top-5 accuracy"),
}
"""By the key under which metrics hold them."""


def choosing(line: Mapping[str, Any]) -> float:
    """By which a measured round is chosen: its accuracy on validation images, without any that on test."""
    return float(line.get("validation", line)["accuracy"])
