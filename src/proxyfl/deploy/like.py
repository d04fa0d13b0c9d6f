"""What the vectors of a federation are like: read from a file that the operator has."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl.core.errors import DataError
from proxyfl.data.numbers import is_vectors, statistics
from proxyfl.data.reader.arrays import Array, read_arrays
from proxyfl.data.reader.columns import read_rows
from proxyfl.data.reader.known import find_form
from proxyfl.data.reader.listing import in_order
from proxyfl.data.reader.tables import read_table


def vectors_like(place: Path, keys: str = "") -> dict[str, Any]:
    """The form of the vectors in a table or npz file: features, mean and standard deviation of each, and the
    classes that it names.
    """
    vectors, names, classes = _read(place, keys)
    if not is_vectors(vectors):
        raise DataError(f"{place} holds images; give a file of vectors, or leave it out")
    mean, std = statistics(vectors)
    form = {
        "channels": vectors.shape[1],
        "image_size": 0,
        "features": names,
        "mean": mean,
        "std": std,
        "flip": False,
    }
    return form | ({"classes": classes} if classes else {})


def _read(place: Path, keys: str) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    """Vectors, names of features, names of classes; names are empty where there are none."""
    found = find_form(place)
    if place.is_dir():
        raise DataError(f"{place} is a folder; give a table or an npz file of vectors")
    if found != "npz":
        rows = read_rows(read_table(place, keys))
        return rows.vectors, rows.features, in_order(row.label for row in rows.entries if row.label)
    try:
        arrays = read_arrays(place, keys)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{place} cannot be read ({error}); replace it") from None
    return np.concatenate([part[0] for part in arrays.parts.values()]), (), arrays.classes or ()
