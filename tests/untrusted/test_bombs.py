"""Bombs: small files that ask for all memory. They are refused, and the memory is not taken."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile_png import png
from PIL import Image
from readers import dicom_sample, idx_bytes, image_sample, model_sample, nifti_sample, npz_sample

from proxyfl.core.checksum import read_verified, write_verified

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures as Linux does")

LARGE = 900 << 20
"""What the largest bombs unpack to: more than the process may have."""


def swollen(head: bytes, size: int, wbits: int) -> bytes:
    """A head and so many zeros, compressed without holding them."""
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, wbits), bytes(1 << 20)
    parts = [packer.compress(head)]
    parts += [packer.compress(zeros) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


def long_header() -> bytes:
    """A header of numpy's format 2 may be four gigabytes long."""
    return npz_of(b"\x93NUMPY\x02\x00" + struct.pack("<I", 200 << 20), 200 << 20)


def hidden_array() -> bytes:
    """The headers are checked for x_train.npy, but numpy prefers a member called x_train."""
    stream, shape = io.BytesIO(npz_sample()), (100 << 8, 64, 64)
    with (
        zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x_train", "w") as member,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(100):
            member.write(bytes(1 << 20))
    return stream.getvalue()


def long_array() -> bytes:
    shape = (LARGE >> 12, 64, 64)
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return npz_of(stream.getvalue(), LARGE)


def npz_of(head: bytes, size: int) -> bytes:
    stream = io.BytesIO(npz_sample())
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with pytest.warns(UserWarning, match="Duplicate"):
            member = archive.open("x_train.npy", "w")
        member.write(head)
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
        member.close()
    return stream.getvalue()


def long_idx() -> bytes:
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", LARGE >> 12, 64, 64)
    return swollen(head, LARGE, 31)


def deflated_dicom() -> bytes:
    """The header of a DICOM file, after which all is compressed: tags before the pixels, too."""
    meta = dicom_sample()[: 128 + 4]
    syntax = b"1.2.840.10008.1.2.1.99"
    group = b"\x02\0\x10\0UI" + struct.pack("<H", len(syntax)) + syntax
    head = meta + b"\x02\0\0\0UL\x04\0" + struct.pack("<I", len(group)) + group
    comment = b"\x08\0\x70\x10OB\0\0" + struct.pack("<I", LARGE)
    return head + swollen(comment, LARGE, -15)


def many_elements() -> bytes:
    """An Enhanced DICOM file: the item about its only frame has four million elements, all of them empty."""
    sample = dicom_sample(enhanced=True)
    at = sample.index(struct.pack("<HH", 0x5200, 0x9229))
    size = 32 << 20
    head = struct.pack("<HH2s2xLHHL", 0x5200, 0x9230, b"SQ", size + 8, 0xFFFE, 0xE000, size)
    empty = struct.pack("<HH2sH", 0x0021, 0x1001, b"LO", 0)
    return sample[:at] + head + empty * (size >> 3) + sample[sample.index(struct.pack("<HH", 0x7FE0, 0x10)) :]


def nifti_note(length: int) -> Callable[[], bytes]:
    """A volume whose header is followed by a note of so many bytes, as it claims."""

    def make() -> bytes:
        sample = bytearray(nifti_sample(b"a note"))
        struct.pack_into("<f", sample, 108, 352 + length)
        struct.pack_into("<i", sample, 352, length)
        return swollen(bytes(sample[:360]), length, 31)

    return make


def large_image() -> bytes:
    """As many pixels as may be, in the mode that takes most memory."""
    stream = io.BytesIO()
    Image.new("RGBA", (7000, 7000)).save(stream, "png", compress_level=1)
    return stream.getvalue()


def card(**changes: object) -> Callable[[], bytes]:
    def make() -> bytes:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a"
            path.write_bytes(model_sample())
            tensors, metadata = read_verified(path)
            fields = json.dumps({**json.loads(metadata["proxyfl"]), **changes})
            write_verified(path, tensors, {"proxyfl": fields})
            return path.read_bytes()

    return make


def lying(header: dict[str, object], length: int | None = None) -> Callable[[], bytes]:
    """A safetensors file whose header is not about what follows."""
    text = json.dumps(header).encode()
    return lambda: struct.pack("<Q", len(text) if length is None else length) + text


SMALL, SOME = 60, 700
BOMBS: dict[str, tuple[str, Callable[[], bytes], int]] = {
    # name: (reader, file, megabytes it may take)
    "a lying png": ("image_png", lambda: png(30_000, 30_000), SMALL),
    "a png of a hundred million pixels": ("image_png", lambda: png(10_000, 10_000, bytes(100)), SMALL),
    "a lying idx": ("idx", lambda: bytes([0, 0, 8, 3]) + struct.pack(">3I", *(2**31,) * 3), SMALL),
    "a lying pickle": ("cifar_pickle", lambda: b"\x80\x02T\xff\xff\xff\x7fabc.", SMALL),
    "a pickle's memo": ("cifar_pickle", lambda: b"\x80\x02]r\xff\xff\xff\xff0.", SMALL),
    "a lying model": (
        "model",
        lying({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}),
        SMALL,
    ),
    "a long lying header": ("model", lying({}, 2**63 - 1), SMALL),
    "a wide model": ("model", card(width=10**6), SMALL),
    "many classes": ("model", card(classes=["a"] * 100_000), SMALL),
    "many channels": ("model", card(channels=10**7, mean=[0.0] * 3, std=[1.0] * 3), SMALL),
    "large images": ("model", card(image_size=10**6), SMALL),
    "many clients": ("config", lambda: b"[partition]\nclients = 1000000000000", SMALL),
    "a deflated dicom": ("dicom", deflated_dicom, SMALL),
    "a frame of many elements": ("dicom_enhanced", many_elements, SMALL),
    "a nifti's long note": ("nifti_gz", nifti_note(LARGE), SMALL),
    "a hidden array": ("npz", hidden_array, SMALL),
    "a long config": ("config", lambda: b"#" * (30 << 20), SMALL + 70),
    "an npz header": ("npz", long_header, SMALL + 70),
}

LARGE_ONES: dict[str, tuple[str, Callable[[], bytes], int]] = {
    "an image": ("image_png", large_image, SOME),
    "a large npz": ("npz", long_array, SOME),
    "a large idx": ("idx_gz", long_idx, SOME),
}
SOUND = {
    "a sound image": ("image_png", lambda: image_sample("png"), SMALL),
    "a sound idx": ("idx", lambda: idx_bytes(np.zeros((3, 8, 8), np.uint8)), SMALL),
}
"""With that little memory they are read; else bombs would be refused for the wrong reason."""


def check(folder: Path, files: dict[str, tuple[str, Callable[[], bytes], int]]) -> None:
    words = []
    for name, (reader, make, _) in files.items():
        (folder / name).write_bytes(make())
        words.append(f"{reader}:{folder / name}")
    script = Path(__file__).with_name("bounded.py")
    paths = [str(script.parent), str(script.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    told = {line["what"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(told) == set(files), done.stderr[-2000:]
    for name, (_, _, most) in files.items():
        assert told[name]["outcome"] == ("read" if name in READ else "refused"), told[name]
        assert told[name]["megabytes"] <= most, told[name]


READ = (*SOUND, "an image", "a hidden array")


def test_bombs(tmp_path: Path) -> None:
    check(tmp_path, SOUND | BOMBS)


@pytest.mark.slow
def test_large_bombs(tmp_path: Path) -> None:
    check(tmp_path, SOUND | LARGE_ONES)
