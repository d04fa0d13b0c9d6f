"""Street View House Numbers, cropped digits, in the original Matlab files. Label 10 is the digit 0.

Y. Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop, 2011.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from proxyfl.core.errors import DataError, missing_extra
from proxyfl.data.files import CHUNK, Checksum, RemoteFile, memory_limit
from proxyfl.data.sources.base import Array, Found, Source, first_folder

if TYPE_CHECKING:
    from proxyfl.data.dataset import Dataset

FILES = ("train_32x32.mat", "test_32x32.mat")
ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
HEADER, COMPRESSED = 128, 15  # of Matlab's format 5
WHOLE = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
MAX_IMAGES = 700_000  # more than the largest official split, so that a header cannot ask for all memory


@dataclass(frozen=True, kw_only=True)
class Svhn(Source):
    """Reads ``train_32x32.mat`` and ``test_32x32.mat``; fewer images than the originals are reported."""

    def locate(self, root: Path) -> Found:
        found = self._folder(root)
        try:
            counts = [self._images_in(root, file) for file in found.files]
        except DataError:
            return found
        return replace(found, counts=(counts[0], counts[1])) if counts else found

    def _folder(self, root: Path) -> Found:
        places = (root / "svhn", root / "SVHN", root)
        folder = first_folder(places, *FILES)
        if folder is None:
            near = [place / name for place in places for name in FILES if (place / name).is_file()]
            note = f"{near[0]} exists, but the other file of the pair does not" if near else ""
            return Found(places, note=note)
        return Found(places, folder, tuple(folder / name for name in FILES))

    def load(self, root: Path, *, image_size: int | None = None) -> Dataset:
        found = self._folder(root)
        if found.folder is None:
            raise self.missing(root, found, " and ".join(FILES))
        train, test = (self._read(root, file) for file in found.files)
        return self.deliver(train, test)

    def _images_in(self, root: Path, file: Path) -> int:
        """The number of images, from the headers alone; a file of another form is refused here."""
        # asked first: scipy gives memory even for a variable's name
        if max(file.stat().st_size, unpacked_size(file, memory_limit())) > memory_limit():
            raise self.damaged(root, file, "it unpacks to more than this machine's memory can hold")
        found = self._scipy(root, file, "whosmat")
        headers = {name: shape for name, shape, _ in found}
        kinds = {name: kind for name, _, kind in found}
        if len(headers) < len(found):
            raise self.damaged(root, file, "a variable is there twice")
        pixels = headers.get("X")
        if pixels is None or len(pixels) != 4 or pixels[:3] != (32, 32, 3) or not 0 < pixels[3] <= MAX_IMAGES:
            raise self.damaged(root, file, f"variable X is {pixels}, expected (32, 32, 3, N)")
        if headers.get("y") != (pixels[3], 1):
            raise self.damaged(root, file, f"variable y is {headers.get('y')}, expected ({pixels[3]}, 1)")
        for name, wanted in (("X", ("uint8",)), ("y", WHOLE)):
            if kinds[name] not in wanted:
                raise self.damaged(root, file, f"variable {name} is {kinds[name]}, expected {wanted[0]}")
        return int(pixels[3])

    def _read(self, root: Path, file: Path) -> tuple[Array, Array]:
        count = self._images_in(root, file)
        content = self._scipy(root, file, "loadmat", variable_names=["X", "y"])
        pixels, labels = content.get("X"), content.get("y")
        for name, value, shape in (("X", pixels, (32, 32, 3, count)), ("y", labels, (count, 1))):
            if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind not in "ui":
                raise self.damaged(root, file, f"variable {name} is no whole-number array of shape {shape}")
        if pixels.dtype != np.uint8 or labels.min() < 1 or labels.max() > 10:
            raise self.damaged(root, file, "expected X as uint8 and y from 1 to 10")
        images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
        return images, labels[:, 0].astype(np.int64) % 10

    def _scipy(self, root: Path, file: Path, function: str, **options: object) -> Any:
        try:
            import scipy.io
        except ImportError:
            raise missing_extra("scipy", "data") from None
        try:
            return getattr(scipy.io, function)(file, **options)
        except Exception as error:  # scipy's reader answers damage with whatever its parser stumbles on
            raise self.damaged(root, file, f"scipy cannot read it ({error})") from None


def unpacked_size(file: Path, limit: int) -> int:
    """Bytes that the compressed variables of a Matlab file unpack to, counted up to ``limit``.

    Scipy gives whatever memory they need. What is no such file counts as nothing: scipy will say so.
    """
    total = 0
    with file.open("rb") as stream:
        order = {b"IM": "<", b"MI": ">"}.get(stream.read(HEADER)[-2:])
        while order and total <= limit and len(tag := stream.read(8)) == 8:
            kind, length = struct.unpack(f"{order}II", tag)
            end = stream.tell() + length
            if kind == COMPRESSED:
                total += _expansion(stream, length, limit - total)
            stream.seek(end)
    return total


def _expansion(stream: BinaryIO, length: int, limit: int) -> int:
    unpacker, total = zlib.decompressobj(), 0
    while total <= limit and length > 0 and (piece := stream.read(min(CHUNK, length))):
        length -= len(piece)
        while piece and total <= limit:
            try:
                total += len(unpacker.decompress(piece, CHUNK))
            except zlib.error:
                return total
            piece = unpacker.unconsumed_tail
    return total


SVHN = Svhn(
    name="svhn",
    title="SVHN, house numbers 32×32 (Netzer et al. 2011)",
    classes=tuple("0123456789"),
    full_size=73257,
    full_test=26032,
    flip=False,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    files=(
        RemoteFile(
            "svhn/train_32x32.mat",
            ADDRESS + "train_32x32.mat",
            Checksum("md5", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ),
        RemoteFile(
            "svhn/test_32x32.mat",
            ADDRESS + "test_32x32.mat",
            Checksum("md5", "eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    checksums={
        "train_32x32.mat": (Checksum("md5", "e26dedcc434d2e4c54c9b2d4a06d8373"),),
        "test_32x32.mat": (Checksum("md5", "eb5a983be6a315427106f1b164d9cef3"),),
    },
)
