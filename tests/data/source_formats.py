"""Writes small files in the original formats of the data sets, for the tests of their readers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from proxyfl.core.errors import DataError
from proxyfl.data.dataset import Dataset
from proxyfl.data.sources import load

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def binary_records(images: np.ndarray, labels: list[int], coarse: bool = False) -> bytes:
    heads = [(bytes([7, label]) if coarse else bytes([label])) for label in labels]
    return b"".join(head + image.tobytes() for head, image in zip(heads, images, strict=True))


def write_cifar10_binary(root: Path, per_file: int = 3) -> np.ndarray:
    """Five training batches and a test batch; returns the training images in order."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    images = pixels(6 * per_file, 3, 32, 32)
    for number, name in enumerate([*BATCHES, "test_batch"]):
        part = images[number * per_file : (number + 1) * per_file]
        labels = [(number + place) % 10 for place in range(per_file)]
        (folder / f"{name}.bin").write_bytes(binary_records(part, labels))
    return images[: 5 * per_file]


def _short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python2_pickle(images: np.ndarray, labels: list[int], label_key: bytes = b"labels") -> bytes:
    """A batch as Python 2's cPickle wrote the originals: protocol 2, byte strings, numpy.core."""
    raw = images.tobytes()
    count, width = images.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09U\x01bq\x0a\x87q\x0bRq\x0c"
        + b"(K\x01M" + struct.pack("<H", count) + b"M" + struct.pack("<H", width) + b"\x86q\x0d"
        + b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11"
        + b"(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b"
        + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"q\x14tq\x15b"
    )  # fmt: skip
    names = b"".join(_short(b"some_object_s_%06d.png" % number) for number in range(count))
    return (
        b"\x80\x02}q\x01(" + _short(b"batch_label") + b"q\x02" + _short(b"training batch 1 of 5") + b"q\x03"
        + _short(label_key) + b"q\x04]q\x05(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
        + _short(b"data") + b"q\x06" + array + _short(b"filenames") + b"q\x16]q\x17(" + names + b"eu."
    )  # fmt: skip


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        struct.pack(">BBBB", 0, 0, 8, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_idx(folder: Path, train: int = 12, test: int = 6, size: int = 8, zipped: bool = True) -> np.ndarray:
    """The four files of the MNIST family; returns the training images."""
    folder.mkdir(parents=True, exist_ok=True)
    images = pixels(train + test, size, size)
    labels = np.arange(train + test, dtype=np.uint8) % 10
    parts = {"train": slice(0, train), "t10k": slice(train, None)}
    for name, part in parts.items():
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", labels[part])):
            content = idx_bytes(array)
            suffix = ".gz" if zipped else ""
            (folder / f"{name}-{kind}-ubyte{suffix}").write_bytes(
                gzip.compress(content) if zipped else content
            )
    return images[:train]


def load_or_message(name: str, root: Path, **options: int) -> Dataset | str:
    """What a damaged file gives: a data set or a DataError's message. Any other exception fails the test."""
    try:
        return load(name, root, **options)
    except DataError as error:
        return str(error)


def save_image(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
