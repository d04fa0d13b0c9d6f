"""Images in folders: classes, splits and clients by the names of the folders, or by a table beside them.

Nothing is trusted: no path or link leads out of the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.core.errors import DataError
from proxyfl.data.images import every_image, list_folder
from proxyfl.data.reader.listing import CLIENT, SPLITS, UNLABELLED, Entry, Listing, class_number
from proxyfl.data.reader.tables import LABELS_FILE, list_beside


def list_images(root: Path, classes: Sequence[str] | None = None) -> Listing:
    """The images below ``root``: as its ``labels.csv`` says where there is one, else by the folders' names.

    ``CLASS/*`` has labels; ``unlabelled/*`` and images outside class folders have none. Above the classes
    there may be the folders ``train``, ``val`` and ``test``, and one ``client=NAME`` for each client. Where
    the classes are given, as at a site, their order is kept and another class is refused.
    """
    table = root / LABELS_FILE
    return list_beside(table, classes) if table.is_file() else _list_folders(root, classes)


def _list_folders(root: Path, classes: Sequence[str] | None) -> Listing:
    reserved = next((name for name in UNLABELLED if name in (classes or ())), None)
    if reserved:
        raise DataError(f"a class is called '{reserved}' like the folder without labels; use a CSV or npz")
    walk = _Walk(root, classes)
    walk.enter(root, None, None)
    return Listing(root, "folder", (*walk.labelled, *walk.without), walk.ignored, tuple(walk.faults))


@dataclass
class _Walk:
    """What has been found on the way through the folders below ``root``."""

    root: Path
    classes: Sequence[str] | None
    labelled: list[Entry] = field(default_factory=list)
    without: list[Entry] = field(default_factory=list)
    ignored: int = 0
    faults: list[str] = field(default_factory=list)

    def enter(self, folder: Path, split: str | None, client: str | None) -> None:
        """A folder above the classes."""
        folders, loose, ignored = list_folder(folder, self.root)
        self.ignored += ignored
        self._add_without(loose, split, client)
        splits = () if split else self._splits([inner.name for inner in folders])
        for inner in sorted(folders, key=self._place):
            name = inner.name
            if name in splits:
                self.enter(inner, name, client)
            elif name.startswith(CLIENT) and client is None and not self._is_class(name):
                self.enter(inner, split, _client(inner))
            elif name in UNLABELLED:
                images, others = every_image(inner, self.root)
                self.ignored += others
                self._add_without(images, split, client)
            elif splits:
                self.ignored += 1
            else:
                self._add_class(inner, split, client)

    def _add_class(self, folder: Path, split: str | None, client: str | None) -> None:
        nested, images, others = list_folder(folder, self.root)
        if self.classes is None and not images:
            raise DataError(f"folder: no images in {folder}; add some or take the folder away")
        try:
            if self.classes is not None:
                class_number(folder.name, self.classes, str(folder))
        except DataError as fault:
            self.faults.append(str(fault))
            return self._add_without(images, split, client)
        self.labelled += [Entry(image, folder.name, client, split) for image in images]
        self.ignored += others + len(nested)

    def _add_without(self, images: Sequence[Path], split: str | None, client: str | None) -> None:
        self.without += [Entry(image, None, client, split) for image in images]

    def _is_class(self, name: str) -> bool:
        return name in (self.classes or ())

    def _place(self, folder: Path) -> tuple[int, str]:
        classes = self.classes or ()
        return (classes.index(folder.name) if folder.name in classes else len(classes)), folder.name

    def _splits(self, names: Sequence[str]) -> tuple[str, ...]:
        """Which of these folders are splits. A class may be called train, too: among vehicles, say."""
        present = tuple(name for name in names if name in SPLITS and not self._is_class(name))
        others = [
            name
            for name in names
            if name not in present and name not in UNLABELLED and not name.startswith(CLIENT)
        ]
        both = {"train", "test"} <= set(present)
        return present if self.classes is not None or not others or both else ()


def _client(folder: Path) -> str:
    name = folder.name.removeprefix(CLIENT).strip()
    if not name:
        raise DataError(f"{folder} names no client; call the folder {CLIENT}NAME")
    return name
