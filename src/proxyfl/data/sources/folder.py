"""People's own images in folders: ``folder:PATH``. ``data/reader/folders.py`` says what the folders mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proxyfl.data.reader.folders import list_images
from proxyfl.data.reader.listing import Listing
from proxyfl.data.sources.listed import Listed


@dataclass(frozen=True, kw_only=True)
class Folder(Listed):
    """One folder, named as ``folder:PATH``."""

    def is_there(self, place: Path) -> bool:
        return place.is_dir()

    def listing(self, place: Path) -> Listing:
        return list_images(place)


FOLDER = Folder(
    name="folder", title="Your own images in class folders: folder:PATH", takes_path=True, flip=True
)
