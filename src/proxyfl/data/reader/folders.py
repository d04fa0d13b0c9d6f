"""Images in folders: classes, splits and clients by the names of the folders, or by a table beside them.

Nothing is trusted: no path or link leads out of the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proxyfl.core.errors import DataError
from proxyfl.core.text import listed
from proxyfl.data.images import every_image, list_folder
from proxyfl.data.reader.listing import CLIENT, SPLIT_WORDS, UNLABELLED, Entry, Listing, class_number
from proxyfl.data.reader.tables import LABELS_FILE, list_beside


def list_images(root: Path, classes: Sequence[str] | None = None) -> Listing:
    """The images below ``root``: as its ``labels.csv`` says where there is one, else by the folders' names.

    What is below ``CLASS/`` has labels; what is below ``unlabelled/`` and images outside class folders have
    none. Above the classes there may be the folders ``train``, ``val`` and ``test``, and one ``client=NAME``
    for each client. Where the classes are given, as at a site, their order is kept and another class is
    refused.
    """
    table = root / LABELS_FILE
    return list_beside(table, classes) if table.is_file() else _list_folders(root, classes)


def _list_folders(root: Path, classes: Sequence[str] | None) -> Listing:
    reserved = next(filter(_is_unlabelled, classes or ()), None)
    if reserved:
        raise DataError(f"a class is called '{reserved}' like the folder without labels; use a CSV or npz")
    walk = _Walk(root, classes)
    walk.enter(root, None, None)
    if classes is None:
        _require_classes(root, walk.below)
    entries = (*walk.labelled, *walk.without)
    return Listing(root, "folder", entries, walk.ignored, tuple(walk.faults), tuple(walk.empty))


def _require_classes(root: Path, below: Mapping[str, set[str]]) -> None:
    """Raise where folders that hold nothing but the same folders look like a level above the classes."""
    shared = sorted(set.intersection(*below.values())) if len(below) > 1 else []
    if shared:
        raise DataError(
            f"folder: {listed(sorted(below), 3)} in {root} contain the same folders ({listed(shared, 3)}): "
            "if these are the classes, name the folders above them client=NAME, or train and test; if not, "
            "move the images up into the folders of their classes, or write a labels.csv"
        )


def _is_unlabelled(name: str) -> bool:
    return name.lower() in UNLABELLED


def _is_client(name: str) -> bool:
    return name.lower().startswith(CLIENT)


@dataclass
class _Walk:
    """What has been found on the way through the folders below ``root``."""

    root: Path
    classes: Sequence[str] | None
    labelled: list[Entry] = field(default_factory=list)
    without: list[Entry] = field(default_factory=list)
    ignored: int = 0
    faults: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    below: dict[str, set[str]] = field(default_factory=dict)
    """The folders in classes that have no image beside them."""

    def enter(self, folder: Path, split: str | None, client: str | None) -> None:
        """A folder above the classes."""
        folders, loose, ignored = list_folder(folder, self.root)
        self.ignored += ignored
        self._add_without(loose, split, client)
        splits = {} if split else self._splits([inner.name for inner in folders])
        for inner in sorted(folders, key=self._place):
            name = inner.name
            if name in splits:
                self.enter(inner, splits[name], client)
            elif _is_client(name) and client is None and not self._is_class(name):
                self.enter(inner, split, _client(inner))
            elif _is_unlabelled(name):
                images, others = every_image(inner, self.root)
                self.ignored += others
                self._add_without(images, split, client)
            elif splits:
                self.ignored += 1
            else:
                self._add_class(inner, split, client)

    def _add_class(self, folder: Path, split: str | None, client: str | None) -> None:
        images, others = every_image(folder, self.root)
        self.ignored += others
        if not images:
            self.empty.append(str(folder.relative_to(self.root)))
            return None
        if all(image.parent != folder for image in images):
            self.below[folder.name] = {image.relative_to(folder).parts[0] for image in images}
        try:
            if self.classes is not None:
                class_number(folder.name, self.classes, str(folder))
        except DataError as fault:
            self.faults.append(str(fault))
            return self._add_without(images, split, client)
        self.labelled += [Entry(image, folder.name, client, split) for image in images]

    def _add_without(self, images: Sequence[Path], split: str | None, client: str | None) -> None:
        self.without += [Entry(image, None, client, split) for image in images]

    def _is_class(self, name: str) -> bool:
        return name in (self.classes or ())

    def _place(self, folder: Path) -> tuple[int, str]:
        classes = self.classes or ()
        return (classes.index(folder.name) if folder.name in classes else len(classes)), folder.name

    def _splits(self, names: Sequence[str]) -> dict[str, str]:
        """Which of these folders are which split. A class may be called train, too: among vehicles, say."""
        present = {
            name: SPLIT_WORDS[name.lower()]
            for name in names
            if name.lower() in SPLIT_WORDS and not self._is_class(name)
        }
        others = [
            name
            for name in names
            if name not in present and not _is_unlabelled(name) and not _is_client(name)
        ]
        both = {"train", "test"} <= set(present.values())
        return present if self.classes is not None or not others or both else {}


def _client(folder: Path) -> str:
    name = folder.name[len(CLIENT) :].strip()
    if not name:
        raise DataError(f"{folder} names no client; name the folder {CLIENT}NAME")
    return name
