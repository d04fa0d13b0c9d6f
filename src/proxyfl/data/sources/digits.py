"""Handwritten digits, 8×8, from scikit-learn: a real data set without a download.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proxyfl.core.errors import missing_extra
from proxyfl.data.sources.base import Array, Found, Source, hold_out

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

TEST_IMAGES = 497
TRAIN_IMAGES = 1300


def shares(counts: Array, total: int) -> list[int]:
    """Divide ``total`` among the classes in proportion to ``counts``, by largest remainders."""
    exact = counts * total / counts.sum()
    parts = np.floor(exact).astype(int)
    largest = np.argsort(parts - exact, kind="stable")[: total - parts.sum()]
    parts[largest] += 1
    return [int(part) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """1,797 images; 497 of them, chosen once and for all and spread over the classes, are the test split."""

    def locate(self, root: Path) -> Found:
        package = importlib.util.find_spec("sklearn")
        if package is None or package.origin is None:
            return Found((), note="needs scikit-learn: pip install 'proxyfl[data]'")
        folder = Path(package.origin).parent / "datasets" / "data"
        files = tuple(file for file in (folder / "digits.csv.gz",) if file.is_file())
        counts = (TRAIN_IMAGES, TEST_IMAGES)
        return Found((folder,), folder, files, counts, note="comes with scikit-learn")

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if not found.files:
            raise missing_extra("scikit-learn", "data")
        rows = _read(found.files[0])
        images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # from 0 to 16
        labels = rows[:, -1].astype(np.int64)
        held = hold_out(labels, shares(np.bincount(labels), TEST_IMAGES))
        return self.deliver((images[~held], labels[~held]), (images[held], labels[held]))


@functools.cache
def _read(file: Path) -> Array:
    """64 pixels and the label in each row. The file alone: importing scikit-learn takes longer than a run's
    first rounds.
    """
    return np.loadtxt(file, delimiter=",")


DIGITS = Digits(
    name="digits",
    title="Handwritten digits 8×8 (Alpaydin & Kaynak 1998), with scikit-learn",
    classes=tuple("0123456789"),
    full_size=TRAIN_IMAGES,
    full_test=TEST_IMAGES,
    flip=False,
    mean=(0.3062,),
    std=(0.3765,),
)
