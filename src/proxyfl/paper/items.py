"""What a table or figure is made of: rows, columns, and the runs where they meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxyfl.paper.scales import DATA


@dataclass(frozen=True)
class Row:
    """A method, and what is set for it alone. A ``bound`` sees what no method may; it is not ranked.

    ``ratio`` is the share of labels where the row does not follow the item's. ``at`` is its place on the
    item's ``axis``, if that has one; rows of a method are then joined to a line.
    """

    label: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ratio: float | None = None
    bound: bool = False
    at: float | None = None


@dataclass(frozen=True)
class Column:
    data: str
    alpha: float

    @property
    def key(self) -> str:
        """As files of numbers call it."""
        return f"{self.data}@{self.alpha:g}"


@dataclass(frozen=True)
class Gain:
    """A line below a table: by how much a row leads the best of others."""

    label: str
    row: str
    over: tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """A table or figure. ``kind`` is what it is made of: accuracies, rounds to an accuracy or what they
    cost, counted traffic, a picture, or a drawing without data. ``measures`` are what its numbers tell, if
    it has any.

    ``settings`` hold for every run, ``full`` at full scale only. ``references`` are rows from which the
    differences of the others are taken. Where those are ``corrected``, they were named before any run: they
    are tested together, by Holm's rule. ``scratch`` leaves out the common start that a scale may have.
    ``exported`` is the item whose exported runs this one is made of, if not its own.
    """

    name: str
    title: str
    shows: str
    kind: str = "accuracy"
    rows: tuple[Row, ...] = ()
    columns: tuple[Column, ...] = ()
    ratio: float = 0.1
    settings: Mapping[str, Any] = field(default_factory=dict)
    full: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ("accuracy",)
    gains: tuple[Gain, ...] = ()
    references: tuple[str, ...] = ()
    corrected: bool = False
    scratch: bool = False
    exported: str = ""
    axis: str = ""
    notes: tuple[str, ...] = ()

    @property
    def picture(self) -> bool:
        return self.kind == "picture"

    @property
    def has_data(self) -> bool:
        return self.kind != "drawing"


def cells(data: Iterable[str], alphas: Iterable[float]) -> tuple[Column, ...]:
    """A column for each data set at each heterogeneity."""
    return tuple(Column(name, alpha) for name in data for alpha in alphas)


ALPHAS = (0.1, 0.5, 1.0)
EVERY, WORST = cells(DATA, ALPHAS), cells(DATA, (0.1,))
"""The columns of the paper's tables."""
