"""People's own images, vectors or texts in a table: ``table:FILE.csv`` or ``table:FILE.parquet``.

A column ``file`` holds paths below the table's folder; without one, the numeric columns are vectors, or the
column ``text`` holds texts (``data/reader/columns.py``). ``label``, ``client`` and ``split`` may be empty or
missing. ``data.keys`` names columns that are called otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import DataError
from proxyfl.data.reader.columns import arrays_of, holds_rows
from proxyfl.data.reader.listing import Listing
from proxyfl.data.reader.tables import Table, list_table, read_table
from proxyfl.data.sources.arrays import dress
from proxyfl.data.sources.base import Found
from proxyfl.data.sources.listed import Listed

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Tabled(Listed):
    """One table, named as ``table:FILE``."""

    def is_there(self, place: Path) -> bool:
        return place.is_file()

    def listing(self, place: Path) -> Listing:
        return list_table(self._table(place))

    def _table(self, place: Path) -> Table:
        if place.suffix.lower() not in (".csv", ".parquet"):
            raise DataError(f"table: {place} must end in .csv or .parquet")
        return read_table(place, self.keys)

    def rows(self, place: Path) -> Dataset | None:
        """The rows of a table of vectors or texts; None where it names images."""
        table = self._table(place)
        return dress(self, place, arrays_of(table)) if holds_rows(table) else None

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        place = next(filter(self.is_there, places), None)
        dataset = None if place is None else self.rows(place)
        if place is None or dataset is None:
            return super().locate(root)
        return Found(places, place, (place,), (len(dataset.train), len(dataset.test)))

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        place = next(filter(self.is_there, self.places(root)), None)
        dataset = None if place is None else self.rows(place)
        return super().load(root, image_size=image_size) if dataset is None else dataset


TABLE = Tabled(
    name="table",
    title="Your own vectors, texts, or paths of images, in a table: table:FILE.csv or .parquet",
    takes_path=True,
    takes_keys=True,
    flip=True,
)
