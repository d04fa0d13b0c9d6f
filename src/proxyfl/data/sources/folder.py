"""People's own images in folders named by class: ``train/CLASS/*`` and ``test/CLASS/*``, or only ``CLASS/*``.

Without a test folder, a fixed fifth of each class is held out as the test split. Images of any size are
squeezed to squares; they become RGB, or grey when all of them are grey. Sixteen-bit images are scaled to
eight bits by the largest grey level of all of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.dataset import Dataset
from proxyfl.data.files import in_words, memory_limit
from proxyfl.data.images import decode_all, list_folder, survey
from proxyfl.data.sources.base import Array, Found, Source, hold_out

DEFAULT_SIZE = 32
TEST_SHARE = 5
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tree:
    """The image files below a folder of class folders, and the label of each."""

    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: Array
    ignored: int


def read_tree(folder: Path, within: Path) -> Tree:
    """List ``folder``/CLASS/*; what lies deeper or is no image is ignored and counted."""
    class_folders, stray, ignored = list_folder(folder, within)
    ignored += len(stray)
    files: list[Path] = []
    labels: list[int] = []
    for label, class_folder in enumerate(class_folders):
        nested, images, others = list_folder(class_folder, within)
        if not images:
            raise DataError(f"folder: no images in {class_folder}; add some or take the folder away")
        files += images
        labels += [label] * len(images)
        ignored += others + len(nested)
    names = tuple(class_folder.name for class_folder in class_folders)
    return Tree(names, tuple(files), np.array(labels, np.int64), ignored)


@dataclass(frozen=True, kw_only=True)
class Folder(Source):
    """One folder, named as ``folder:PATH``."""

    def locate(self, root: Path) -> Found:
        places = self.places(root)
        folder = next((place for place in places if place.is_dir()), None)
        if folder is None:
            return Found(places)
        train, test, note = self._splits(folder)
        counts = (len(train.files), len(test.files))
        return Found(places, folder, (*train.files, *test.files), counts, note)

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        size = DEFAULT_SIZE if image_size is None else image_size
        if size < 8:
            raise ConfigError(f"data.image_size = {size} is too small; the networks need 8 or more")
        found = Found(self.places(root))
        folder = next((place for place in found.looked if place.is_dir()), None)
        if folder is None:
            raise self.missing(root, found, "the folder")
        train, test, note = self._splits(folder)
        files = (*train.files, *test.files)
        looked = survey(files)
        channels = 1 if looked.grey else 3
        needed = len(files) * channels * size * size
        if needed > memory_limit():
            raise DataError(f"folder: the images need {in_words(needed)}; set a smaller data.image_size")
        images, depth = decode_all(looked, channels, size, f"reading {folder.name}")
        for line in filter(None, (note, depth)):
            log.warning("folder: %s", line)
        cut = len(train.files)
        return self.deliver((images[:cut], train.labels), (images[cut:], test.labels), classes=train.classes)

    def _splits(self, folder: Path) -> tuple[Tree, Tree, str]:
        """Training files, test files, and what there is to tell about the choice."""
        if (folder / "train").is_dir() or (folder / "test").is_dir():
            for name in ("train", "test"):
                if not (folder / name).is_dir():
                    raise DataError(f"folder: {folder / name} is missing; expected train/CLASS, test/CLASS")
            train, test = (read_tree(folder / name, folder) for name in ("train", "test"))
            notes = []
            test = _relabelled(test, train, folder)
        else:
            train, test = _cut(read_tree(folder, folder))
            total = len(train.files) + len(test.files)
            notes = [f"no test folder: {len(test.files):,} of {total:,} images held out as the test split"]
        if not train.files or not test.files:
            raise DataError(f"folder: too few images in {folder}; expected CLASS/* or train|test/CLASS/*")
        if ignored := train.ignored + test.ignored:
            notes.append(f"{ignored:,} entries ignored: nested folders or no images")
        return train, test, "; ".join(notes)


def _relabelled(test: Tree, train: Tree, folder: Path) -> Tree:
    """The test files with the labels that the training folders give to the same names."""
    strange = [name for name in test.classes if name not in train.classes]
    if strange:
        raise DataError(f"folder: {folder / 'test' / strange[0]} has no fellow in {folder / 'train'}")
    places = np.array([train.classes.index(name) for name in test.classes], np.int64)
    return Tree(train.classes, test.files, places[test.labels], test.ignored)


def _cut(tree: Tree) -> tuple[Tree, Tree]:
    """Hold out a fifth of each class, at least one image of any that has two."""
    counts = np.bincount(tree.labels, minlength=len(tree.classes))
    held = hold_out(tree.labels, [max(round(count / TEST_SHARE), 1) if count > 1 else 0 for count in counts])
    train, test = (
        Tree(
            tree.classes,
            tuple(tree.files[place] for place in np.flatnonzero(mask)),
            tree.labels[mask],
            ignored,
        )
        for mask, ignored in ((~held, tree.ignored), (held, 0))
    )
    return train, test


FOLDER = Folder(
    name="folder", title="Your own images in class folders: folder:PATH", takes_path=True, flip=True
)
