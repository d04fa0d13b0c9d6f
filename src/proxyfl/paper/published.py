"""The numbers that the paper prints, from ``numbers/``: a CSV per table or figure, its source on top."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType


@dataclass(frozen=True)
class Published:
    """Values by row and column. A cell that the paper leaves empty is absent; ``source`` says where from."""

    source: str
    values: Mapping[tuple[str, str], float]

    def get(self, row: str, column: str) -> float | None:
        return self.values.get((row, column))


NOTHING = Published("", MappingProxyType({}))


@cache
def published(item: str) -> Published:
    """What the paper prints for an item; :data:`NOTHING` where it prints no numbers."""
    file = resources.files("proxyfl.paper").joinpath("numbers", f"{item}.csv")
    if not file.is_file():
        return NOTHING
    lines = file.read_text(encoding="utf-8").splitlines()
    source = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
    values = {
        (row["row"], column): float(value)
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
        for column, value in row.items()
        if column != "row" and value
    }
    return Published(source, MappingProxyType(values))
