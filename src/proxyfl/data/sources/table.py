"""People's own images named in a table: ``table:FILE.csv`` or ``table:FILE.parquet``.

A column ``file`` holds paths below the table's folder; ``label``, ``client`` and ``split`` may be empty or
missing. ``data.keys`` names columns that are called otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.errors import DataError
from proxyfl.data.reader.listing import Listing
from proxyfl.data.reader.tables import list_table, read_table
from proxyfl.data.sources.listed import Listed


@dataclass(frozen=True, kw_only=True)
class Tabled(Listed):
    """One table, named as ``table:FILE``."""

    def is_there(self, place: Path) -> bool:
        return place.is_file()

    def listing(self, place: Path) -> Listing:
        if place.suffix.lower() not in (".csv", ".parquet"):
            raise DataError(f"table: {place} must end in .csv or .parquet")
        table = read_table(place, self.keys)
        if table.texts("file") is None:
            columns = ", ".join(table.columns)[:300] or "nothing"
            raise DataError(
                f"table: {place} has no column 'file' with the paths of images, but {columns}; "
                "name it with data.keys, as in data.keys=file=image_path"
            )
        return list_table(table)


TABLE = Tabled(
    name="table",
    title="Your own images in a table of paths and labels: table:FILE.csv or .parquet",
    takes_path=True,
    takes_keys=True,
    flip=True,
)
