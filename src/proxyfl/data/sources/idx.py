"""The MNIST family's idx files, plain or gzipped: MNIST, Fashion-MNIST and people's own files of that form.

Y. LeCun, C. Cortes and C. Burges, The MNIST database of handwritten digits, 1998.
H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017.

Debian's package ``dataset-fashion-mnist`` installs Fashion-MNIST where this source also looks.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from proxyfl.core.text import in_words
from proxyfl.data.files import CHUNK, Checksum, RemoteFile, memory_limit
from proxyfl.data.sources.base import Array, Found, Source

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FASHION_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
MNIST_ADDRESS = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # a mirror: the original address is closed
UNSIGNED_BYTE = 8
GZIP_RATIO = 1032  # no gzip stream expands further


@dataclass(frozen=True, kw_only=True)
class Idx(Source):
    """Four files in one of ``folders``, which are taken from the data root unless absolute."""

    folders: tuple[str, ...]

    def locate(self, root: Path) -> Found:
        standard = tuple(root / folder for folder in self.folders)
        places = standard if self.path is None else self.places(root)
        for place in places:
            files = [_present(place, stem) for stem in STEMS]
            if all(files):
                here = tuple(file for file in files if file is not None)
                return Found(places, place, here, self._counts(here))
        near = [place for place in places if any(_present(place, stem) for stem in STEMS)]
        if not near:
            return Found(places)
        lacking = ", ".join(stem for stem in STEMS if _present(near[0], stem) is None)
        return Found(places, note=f"{near[0]} lacks {lacking}")

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self.locate(root)
        if found.folder is None:
            raise self.missing(root, found, f"{', '.join(STEMS)} (or the same with .gz)")
        parts = []
        for file, dimensions in zip(found.files, (3, 1, 3, 1), strict=True):
            try:
                parts.append(read_idx(file, dimensions))
            except (OSError, EOFError, zlib.error, MemoryError) as error:
                raise self.damaged(root, file, f"it cannot be read ({error})") from None
            except ValueError as error:
                raise self.damaged(root, file, str(error)) from None
        for place in (0, 2):
            if len(parts[place]) != len(parts[place + 1]):
                fault = f"{len(parts[place + 1]):,} labels for {len(parts[place]):,} images"
                raise self.damaged(root, found.files[place + 1], fault)
        return self.deliver((parts[0][:, None], parts[1]), (parts[2][:, None], parts[3]))

    def _counts(self, files: tuple[Path, ...]) -> tuple[int, int] | None:
        try:
            return read_shape(files[0])[0], read_shape(files[2])[0]
        except (OSError, EOFError, ValueError, zlib.error):
            return None


def _present(place: Path, stem: str) -> Path | None:
    dotted = stem.replace("-idx", ".idx")
    names = (stem, f"{stem}.gz", dotted, f"{dotted}.gz")
    return next((place / name for name in names if (place / name).is_file()), None)


def _open(file: Path) -> BinaryIO:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def _shape(stream: BinaryIO) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise ValueError("it does not start like an idx file")
    if magic[2] != UNSIGNED_BYTE or not 1 <= magic[3] <= 4:
        raise ValueError(f"data type {magic[2]} with {magic[3]} dimensions, expected unsigned bytes (8)")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise ValueError("it ends inside its header")
    return tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


def read_shape(file: Path) -> tuple[int, ...]:
    """The array's shape, from the header alone."""
    with _open(file) as stream:
        return _shape(stream)


def read_idx(file: Path, dimensions: int) -> Array:
    """The array in an idx file; what the header says is checked against the file before memory is given."""
    size = file.stat().st_size
    with _open(file) as stream:
        shape = _shape(stream)
        expected = math.prod(shape)
        if len(shape) != dimensions or expected == 0:
            raise ValueError(f"its array has shape {shape}, expected {dimensions} dimensions, none empty")
        room = size * GZIP_RATIO if file.suffix == ".gz" else size
        if expected > room:
            raise ValueError(
                f"its header declares {expected:,} bytes, more than {in_words(size)} can contain"
            )
        if expected > memory_limit():
            raise ValueError(f"it holds {in_words(expected)}, too much for this machine's memory")
        content = bytearray()
        while len(content) <= expected and (piece := stream.read(min(CHUNK, expected + 1 - len(content)))):
            content += piece
    if len(content) != expected:
        word = "at least" if len(content) > expected else "only"
        raise ValueError(f"its header declares {expected:,} bytes, there are {word} {len(content):,}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _downloads(
    folder: str, address: str, md5s: tuple[str, ...], official: bool = False
) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(f"{folder}/{stem}.gz", f"{address}{stem}.gz", Checksum("md5", md5, official))
        for stem, md5 in zip(STEMS, md5s, strict=True)
    )


_FASHION = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_FASHION_DEBIAN = (
    "cf8536b0aa1a6ac5fa3f23001093305c",
    "10bea18fdb374794d4bb42e356e600c9",
    "f78720b4224f21cce2f2ccf2d7a94c9a",
    "0d30e22e447f3c33dab9ed536400ac01",
)
_DIGITS = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)

IDX = Idx(
    name="idx",
    title="Grey images in idx files, as MNIST has them: idx:FOLDER",
    takes_path=True,
    folders=(".", "idx", str(DEBIAN)),
)

FASHION_MNIST = Idx(
    name="fashion-mnist",
    title="Fashion-MNIST, clothes 28×28 (Xiao et al. 2017)",
    classes=(
        "T-shirt",
        "trousers",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    full_size=60000,
    full_test=10000,
    flip=True,
    mean=(0.2860,),
    std=(0.3530,),
    folders=("fashion-mnist", "FashionMNIST/raw", str(DEBIAN)),
    files=_downloads("fashion-mnist", FASHION_ADDRESS, _FASHION, official=True),
    checksums={
        f"{stem}.gz": (Checksum("md5", official, official=True), Checksum("md5", debian))
        for stem, official, debian in zip(STEMS, _FASHION, _FASHION_DEBIAN, strict=True)
    },
)

MNIST = Idx(
    name="mnist",
    title="MNIST, handwritten digits 28×28 (LeCun et al. 1998)",
    classes=tuple("0123456789"),
    full_size=60000,
    full_test=10000,
    flip=False,
    mean=(0.1307,),
    std=(0.3081,),
    folders=("mnist", "MNIST/raw"),
    files=_downloads("mnist", MNIST_ADDRESS, _DIGITS),
    checksums={f"{stem}.gz": (Checksum("md5", md5),) for stem, md5 in zip(STEMS, _DIGITS, strict=True)},
)
