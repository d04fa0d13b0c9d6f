"""Tables whose rows are vectors: the numeric columns are the features, but for label, client and split.

A column is numeric where most of its cells are numbers; a cell in it that is none is a fault. Other columns
are left out. ``data.keys`` may choose: ``features=age+dose+lab_*`` or ``without=id``. Where no column is
numeric, or ``data.keys`` says so (``text=note``), rows are texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.core.text import listed
from proxyfl.data.images import SUFFIXES
from proxyfl.data.numbers import numbers
from proxyfl.data.reader.arrays import Array, Arrays
from proxyfl.data.reader.listing import MINUS_ONE, NO_LABEL, NONE_IN_ARRAYS, Entry, as_one_error, in_order
from proxyfl.data.reader.tables import KNOWN, Table, entries
from proxyfl.data.texts import packed

NAMED = 8
"""Columns named in a sentence."""


@dataclass(frozen=True)
class Rows:
    """Vectors (N, d) as float32, the names of their features, and what is known of each. Texts are as
    ``data/texts.py`` packs them, and have the name of their column.
    """

    vectors: Array
    features: tuple[str, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


def holds_rows(table: Table) -> bool:
    """Whether a table is about vectors or texts: it names no image files, or other columns were chosen."""
    return bool(table.features) or "text" in table.named or table.texts("file") is None


def holds_texts(table: Table) -> bool:
    """Whether a table is about texts: ``data.keys`` names their column, or there is one called ``text`` and
    nothing else that could be meant.
    """
    if "text" in table.named:
        return True
    cells = table.columns.get(table.roles["text"])
    if cells is None or table.features or table.texts("file") is not None:
        return False
    names = set(table.columns) - {table.roles[role] for role in KNOWN}
    return not any(_is_numeric(table.columns[name]) for name in names)


def read_texts(table: Table, classes: Sequence[str] | None = None, column: str = "") -> Rows:
    """All rows of a table of texts; ``column`` is where they are, if that is known."""
    name = column or table.roles["text"]
    if name not in table.columns:
        known = ", ".join(table.columns)[:300]
        raise DataError(
            f"{table.file} has no column '{name}' of texts; its columns are {known}; name it with data.keys, "
            "as in data.keys=text=note"
        )
    cells = ["" if cell is None else str(cell).strip() for cell in table.columns[name]]
    faults = [
        f"{table.where(place)}: there is no text in column '{name}'; fill it in or leave out the row"
        for place, cell in enumerate(cells)
        if not cell
    ]
    found = tuple(entry for _, _, entry in entries(table, classes, faults))
    if faults:
        raise as_one_error(faults)
    return Rows(packed(cells), (name,), found)


def read_rows(table: Table, classes: Sequence[str] | None = None, features: Sequence[str] = ()) -> Rows:
    """All rows. ``features`` are the names that are wanted where they are known, as for a model; where the
    classes are given, as at a site, another one is refused.
    """
    names, left_out = (_known(table, features), []) if features else _found(table)
    columns = [_numeric(table, name) for name in names]
    vectors = np.stack(columns, 1) if len(table) else np.zeros((0, len(names)))
    faults: list[str] = []
    found = tuple(entry for _, _, entry in entries(table, classes, faults))
    if faults:
        raise as_one_error(faults)
    hint = "; if texts are meant: data.keys=text=text" if table.roles["text"] in left_out else ""
    shown = f"columns that are not numbers are left out: {', '.join(left_out)[:300]}{hint}"
    notes = [shown] if left_out else []
    counting = [name for name, column in zip(names, columns, strict=True) if not features and _counts(column)]
    if counting and not table.features:
        cure = f"data.keys=without={'+'.join(counting)}"
        notes.append(f"{listed(counting)}: do these numbers only count the rows? leave them out with {cure}")
    return Rows(numbers(vectors, str(table.file), names, table.lines), tuple(names), found, tuple(notes))


def arrays_of(table: Table) -> Arrays:
    """The rows by split, with their classes and clients."""
    rows = read_texts(table) if holds_texts(table) else read_rows(table)
    classes = in_order(entry.label for entry in rows.entries if entry.label is not None)
    if not classes:
        cure = "name its column with data.keys, as in data.keys=label=diagnosis"
        column = table.roles["label"]
        why = f"there is no column '{column}'" if table.texts("label") is None else f"'{column}' is empty"
        raise DataError(f"table: {table.file}: no row has a label: {why}; {cure}")
    place = {name: number for number, name in enumerate(classes)}
    labels = np.array([NO_LABEL if row.label is None else place[row.label] for row in rows.entries], np.int64)
    splits = np.array([row.split or "train" for row in rows.entries])
    parts = {
        split: (rows.vectors[splits == split], labels[splits == split])
        for split in ("train", "val", "test")
        if (splits == split).any()
    }
    clients = np.array([row.client or "" for row in rows.entries])[splits == "train"]
    owners = clients if clients.any() else None
    notes = (*rows.notes, MINUS_ONE) if NONE_IN_ARRAYS in classes else rows.notes
    return Arrays(parts, classes, owners, rows.features, notes=notes)


def _known(table: Table, features: Sequence[str]) -> Sequence[str]:
    missing = [name for name in features if name not in table.columns]
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise DataError(f"{table.file} has no column {', '.join(map(repr, missing[:NAMED]))}{more}")
    return features


def _found(table: Table) -> tuple[list[str], list[str]]:
    """The columns that are features, and those that are left out because they are no numbers."""
    taken = {table.roles[role] for role in ("file", *KNOWN)}
    if table.features:
        return _matching(table, table.features, "features"), []
    left_out = taken.union(_matching(table, table.without, "without") if table.without else ())
    names = [name for name in table.columns if name not in left_out]
    found = [name for name in names if _is_numeric(table.columns[name])]
    others = [name for name in names if name not in found]
    for name in others:
        if any(str(cell).lower().endswith(tuple(SUFFIXES)) for cell in table.columns[name][:NAMED]):
            raise DataError(
                f"table: {table.file}: column '{name}' contains names of image files; declare it with "
                f"data.keys=file={name}, or choose the columns of vectors with data.keys=features=A+B"
            )
    if not found:
        columns = ", ".join(table.columns)[:300] or "nothing"
        raise DataError(
            f"table: {table.file} has no column 'file' with the paths of images, no column 'text', and no "
            f"column of numbers, but {columns}; name them with data.keys, as in data.keys=file=image_path"
        )
    return found, others


def _matching(table: Table, patterns: Sequence[str], role: str) -> list[str]:
    """The columns that patterns fit, in the order of the patterns."""
    found: dict[str, None] = {}
    for pattern in patterns:
        fits = [name for name in table.columns if name == pattern or fnmatchcase(name, pattern)]
        if not fits:
            known = ", ".join(table.columns)[:300]
            raise DataError(
                f"{table.file} has no column '{pattern}' ({role} in data.keys); its columns are {known}"
            )
        found.update(dict.fromkeys(fits))
    return list(found)


def _is_numeric(cells: Sequence[Any]) -> bool:
    """Whether most of the cells that hold something are numbers."""
    held = [cell for cell in cells if cell is not None and cell != ""]
    return 2 * sum(_number(cell) is not None for cell in held) > len(held)


def _numeric(table: Table, name: str) -> Array:
    """A column as numbers; what is missing is no number (nan)."""
    cells = table.columns[name]
    found = np.empty(len(cells))
    for place, cell in enumerate(cells):
        value = np.nan if cell is None or cell == "" else _number(cell)
        if value is None:
            shown = str(cell)[:40]
            raise DataError(
                f"{table.where(place)}: '{shown}' in column '{name}' is not a number; correct it, or leave "
                f"the column out with data.keys=without={name}"
            )
        found[place] = value
    return found


def _counts(column: Array) -> bool:
    """Whether a column goes up by one from row to row: an identifier, of which a network learns the order."""
    return len(column) >= NAMED and bool((np.diff(column) == 1).all())


def _number(cell: Any) -> float | None:
    if not isinstance(cell, str | int | float | Decimal):
        return None
    try:
        return float(cell)
    except OverflowError:
        return float("inf")
    except ValueError:
        return None
