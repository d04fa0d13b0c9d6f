"""People's own data in one .npz file: ``npz:FILE``. ``data/reader/arrays.py`` says what the arrays mean.

Images are uint8, N×H×W or N×H×W×3, vectors are numbers, N×d; labels are whole numbers, one for each of them,
-1 where nobody knows it. Without a test split, a fixed fifth of each class is held out. Images are not
mirrored, since a mirrored digit or organ may be another class.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import DataError
from proxyfl.data.archives import FAULTS
from proxyfl.data.arrays import PICKLED
from proxyfl.data.reader.arrays import naming, read_arrays, read_headers
from proxyfl.data.sources.arrays import dress
from proxyfl.data.sources.base import Found, Source

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Npz(Source):
    """One file, named as ``npz:FILE``."""

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            return Found(places)
        try:
            headers = read_headers(file)
            names = naming(file, headers, self.keys)
            counts = headers[names["train"][0]][0][0], headers[names["test"][0]][0][0]
        except (*FAULTS, DataError, LookupError):
            return Found(places, file.parent, (file,))
        return Found(places, file.parent, (file,), counts)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if found.folder is None:
            raise self.missing(root, found, "the .npz file")
        file = found.files[0]
        try:
            arrays = read_arrays(file, self.keys)
        except ValueError as error:
            if PICKLED in str(error):
                raise DataError(f"npz: {file}: {error}") from None
            raise self.damaged(root, file, str(error)) from None
        except FAULTS as error:
            if file.suffix.lower() == ".npy":
                cure = "save it and the labels in one file: np.savez('data.npz', images=…, labels=…)"
                raise DataError(f"npz: {file} holds one array; {cure}") from None
            raise self.damaged(root, file, f"it cannot be read ({error})") from None
        except DataError as error:
            unnamed = ", expected images and labels" in str(error)
            hint = "; name them with data.keys, as in data.keys=images=KEY,labels=KEY" if unnamed else ""
            raise DataError(f"npz: {error}{hint}") from None
        return dress(self, file, arrays)


NPZ = Npz(
    name="npz",
    title="Your own arrays, MedMNIST's too: npz:FILE",
    takes_path=True,
    takes_keys=True,
    flip=False,
)
