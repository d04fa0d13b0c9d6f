"""Every reader of files that strangers may have written: a small valid file for each, and how it is read.

Shared by the property tests and by the fuzzer. A reader gets bytes and an empty folder; it gives something or
raises an error that people can mend. Anything else it does is a fault.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from run_readers import RUN_READERS

from proxyfl.core.errors import ProxyFLError
from proxyfl.core.trees import parse_assignment
from proxyfl.data.archives import unpack
from proxyfl.data.images import decode_all, survey
from proxyfl.data.sources import load
from proxyfl.data.sources.idx import STEMS
from proxyfl.runs.config_file import load_toml, to_toml
from proxyfl.runs.directory import read_json_lines
from proxyfl.runs.export import ModelCard, load_model, save_model
from proxyfl.runs.settings import resolve

FORMATS = ("png", "jpeg", "gif", "bmp", "tiff", "webp", "ppm")


@dataclass(frozen=True)
class Reader:
    """``sample`` makes a valid file, ``read`` reads one."""

    sample: Callable[[], bytes]
    read: Callable[[bytes, Path], Any]

    def __call__(self, content: bytes, folder: Path) -> Any:
        """What comes of these bytes: a result, or None where they were refused in words of one line."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self.read(content, folder)
            except ProxyFLError as error:
                if not str(error).isprintable() or len(str(error)) > 2000:
                    raise AssertionError(f"no line of words: {str(error)[:300]!r}") from error
                return None


def pixels(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def npz_sample() -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        x_train=pixels(4, 8, 8),
        y_train=np.array([0, 1, 2, 1]),
        x_test=pixels(2, 8, 8),
        y_test=np.array([1, 0]),
    )
    return stream.getvalue()


def read_npz(content: bytes, folder: Path) -> Any:
    (folder / "a.npz").write_bytes(content)
    return load(f"npz:{folder / 'a.npz'}", folder, image_size=8)


def idx_bytes(array: np.ndarray[Any, Any]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def read_idx(content: bytes, folder: Path, suffix: str = "") -> Any:
    """The first file is the stranger's, the others are sound."""
    parts = [
        content,
        *map(idx_bytes, (np.array([0, 1, 2], np.uint8), pixels(2, 8, 8), np.array([1, 0], np.uint8))),
    ]
    for place, (stem, part) in enumerate(zip(STEMS, parts, strict=True)):
        (folder / f"{stem}{suffix}").write_bytes(gzip.compress(part) if suffix and place else part)
    return load(f"idx:{folder}", folder, image_size=8)


def cifar_bytes(count: int) -> bytes:
    records = np.concatenate([pixels(count, 1) % 10, pixels(count, 3072)], axis=1)
    return records.tobytes()


def read_cifar(content: bytes, folder: Path) -> Any:
    place = folder / "cifar-10-batches-bin"
    place.mkdir(exist_ok=True)
    (place / "data_batch_1.bin").write_bytes(content)
    (place / "test_batch.bin").write_bytes(cifar_bytes(1))
    return load("cifar10", folder)


def cifar_pickle() -> bytes:
    return pickle.dumps({"data": pixels(2, 3072), "labels": [3, 9], "filenames": [b"a", b"b"]}, 2)


def read_cifar_pickle(content: bytes, folder: Path) -> Any:
    place = folder / "cifar-10-batches-py"
    place.mkdir(exist_ok=True)
    (place / "data_batch_1").write_bytes(content)
    (place / "test_batch").write_bytes(cifar_pickle())
    return load("cifar10", folder)


def svhn_sample(compressed: bool = True) -> bytes:
    import scipy.io

    stream = io.BytesIO()
    content = {"X": pixels(32, 32, 3, 2), "y": np.array([[1], [10]], np.uint8)}
    scipy.io.savemat(stream, content, do_compression=compressed)
    return stream.getvalue()


def read_svhn(content: bytes, folder: Path) -> Any:
    place = folder / "svhn"
    place.mkdir(exist_ok=True)
    (place / "train_32x32.mat").write_bytes(content)
    (place / "test_32x32.mat").write_bytes(_svhn_test())
    return load("svhn", folder)


@cache
def _svhn_test() -> bytes:
    return svhn_sample()


def image_sample(form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels(9, 7, 3)).save(stream, form)
    return stream.getvalue()


def read_image(content: bytes, folder: Path) -> Any:
    (folder / "a.png").write_bytes(content)
    looked = survey([folder / "a.png"])
    channels = 1 if looked.grey else 3
    found, _, _ = decode_all(looked, channels, 8, "reading")
    assert found.shape == (1, channels, 8, 8)
    assert found.dtype == np.uint8
    return found


def tar_sample(mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, content in (("top/a", b"abc" * 50), ("top/b/c", b"d" * 600)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def zip_sample() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/a", b"abc" * 50)
        archive.writestr("top/b/c", b"d" * 600)
    return stream.getvalue()


def read_archive(content: bytes, folder: Path) -> Any:
    """Nothing may appear beside the target, and nothing at all where the archive was refused."""
    (folder / "archive").write_bytes(content)
    (folder / "root").mkdir(exist_ok=True)
    try:
        return unpack(folder / "archive", folder / "root" / "set", max_bytes=1 << 20, max_members=1000)
    finally:
        assert {path.name for path in folder.iterdir()} == {"archive", "root"}
        assert {path.name for path in (folder / "root").iterdir()} <= {"set"}
        for path in (folder / "root").rglob("*"):
            assert not path.is_symlink()
            assert path.is_file() or path.is_dir()


def config_sample() -> bytes:
    return to_toml(resolve("digits", {"compute": {"dtype": "fp32"}}), "a comment").encode()


def read_config(content: bytes, folder: Path) -> Any:
    (folder / "a.toml").write_bytes(content)
    return resolve("", load_toml(folder / "a.toml"))


def read_assignment(content: bytes, folder: Path) -> Any:
    return parse_assignment(content.decode("utf-8", "surrogateescape"))


def lines_sample() -> bytes:
    line = {"round": 1, "accuracy": 0.5, "failed": {"3": "no battery"}, "losses": {"supervised": 2.0}}
    return b"".join(json.dumps({**line, "round": round}).encode() + b"\n" for round in (1, 2))


def read_lines(content: bytes, folder: Path) -> Any:
    (folder / "metrics.jsonl").write_bytes(content)
    return read_json_lines(folder / "metrics.jsonl")


@cache
def model_sample() -> bytes:
    from tempfile import TemporaryDirectory

    from proxyfl.models import build

    card = ModelCard("resnet8", 1, False, 1, 8, ("a", "b"), (0.5,), (0.25,), "fedavg", 3, 0.5)
    with TemporaryDirectory() as folder, torch.random.fork_rng():
        path = Path(folder) / "model.safetensors"
        save_model(path, build("resnet8", 2, 1, 1).state_dict(), card)
        return path.read_bytes()


def read_model(content: bytes, folder: Path) -> Any:
    (folder / "a.safetensors").write_bytes(content)
    trained = load_model(folder / "a.safetensors")
    card = trained.card
    return trained(torch.zeros(1, card.channels, card.image_size, card.image_size, dtype=torch.uint8))


def dicom_sample(enhanced: bool = False) -> bytes:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = "1.2.3"
    data.Rows, data.Columns, data.SamplesPerPixel = 8, 8, 1
    data.PhotometricInterpretation, data.PixelRepresentation = "MONOCHROME2", 0
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    data.PixelData = bytes(128)
    if enhanced:
        window, groups = Dataset(), Dataset()
        window.WindowCenter, window.WindowWidth = 40, 400
        groups.FrameVOILUTSequence = [window]
        data.NumberOfFrames, data.SharedFunctionalGroupsSequence = 1, [groups]
    stream = io.BytesIO()
    data.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def nifti_sample(extension: bytes = b"") -> bytes:
    """A volume of 8 × 8 × 3, with or without an extension of its header."""
    import nibabel

    volume = nibabel.Nifti1Image(np.arange(192, dtype=np.int16).reshape(8, 8, 3), np.eye(4))
    if extension:
        volume.header.extensions.append(nibabel.nifti1.Nifti1Extension(6, extension))
    return bytes(volume.to_bytes())


def read_medical(content: bytes, folder: Path, ending: str) -> Any:
    (folder / f"a.{ending}").write_bytes(content)
    return decode_all(survey([folder / f"a.{ending}"]), 1, 8, "reading")[0]


READERS: dict[str, Reader] = {
    "npz": Reader(npz_sample, read_npz),
    "idx": Reader(lambda: idx_bytes(pixels(3, 8, 8)), read_idx),
    "idx_gz": Reader(
        lambda: gzip.compress(idx_bytes(pixels(3, 8, 8))),
        lambda content, folder: read_idx(content, folder, ".gz"),
    ),
    "cifar": Reader(lambda: cifar_bytes(2), read_cifar),
    "cifar_pickle": Reader(cifar_pickle, read_cifar_pickle),
    "svhn": Reader(svhn_sample, read_svhn),
    "svhn_plain": Reader(lambda: svhn_sample(compressed=False), read_svhn),
    **{f"image_{form}": Reader(lambda form=form: image_sample(form), read_image) for form in FORMATS},
    "dicom": Reader(dicom_sample, lambda content, folder: read_medical(content, folder, "dcm")),
    "dicom_enhanced": Reader(
        lambda: dicom_sample(enhanced=True), lambda content, folder: read_medical(content, folder, "dcm")
    ),
    "nifti": Reader(nifti_sample, lambda content, folder: read_medical(content, folder, "nii")),
    "nifti_gz": Reader(
        lambda: gzip.compress(nifti_sample(b"a note")),
        lambda content, folder: read_medical(content, folder, "nii.gz"),
    ),
    "tar": Reader(lambda: tar_sample("w"), read_archive),
    "tar_gz": Reader(lambda: tar_sample("w:gz"), read_archive),
    "zip": Reader(zip_sample, read_archive),
    "config": Reader(config_sample, read_config),
    "assignment": Reader(lambda: b"method.tau=0.9", read_assignment),
    "json_lines": Reader(lines_sample, read_lines),
    "model": Reader(model_sample, read_model),
    **{name: Reader(*parts) for name, parts in RUN_READERS.items()},
}
