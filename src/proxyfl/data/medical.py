"""Medical images: DICOM files and slices of NIfTI volumes, as grey or colour pictures of 8 bits.

DICOM (extra ``medical``): stored values times rescale slope plus intercept, through the first window of the
file (of a file without one, the whole range that its bits can store), MONOCHROME1 inverted; in an Enhanced
file, as the functional groups of the frame say. Nothing else of a file is read: no tag about a patient is
parsed, and what the reader says of a damaged file is not repeated, since it may quote one.

NIfTI: axes turned to right, anterior, superior; a slice along the third, anterior up; values from ``cal_min``
to ``cal_max`` of the header, else over the whole volume's range, so that its slices stay comparable.

Of several frames or slices the middle one is taken; ``FILE#K`` in a table names another, counted from 0.
"""

from __future__ import annotations

import gzip
import logging
import re
import struct
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.files import memory_limit
from proxyfl.data.frames import of_frame

DICOM, NIFTI = (".dcm", ".dicom"), (".nii", ".nii.gz")
SUFFIXES = (*DICOM, *NIFTI)
MAX_PIXELS = 50_000_000
NAMED = re.compile(r"(.+)#([0-9]{1,6})", re.DOTALL)
TAGS = (
    "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "BitsAllocated",
    "BitsStored", "HighBit", "PixelRepresentation", "PlanarConfiguration", "RescaleSlope", "RescaleIntercept",
    "WindowCenter", "WindowWidth", "VOILUTFunction", "PixelData",
)  # fmt: skip
"""All that is read of a DICOM file, but for its functional groups."""

DEFLATED = "1.2.840.10008.1.2.1.99"
"""The transfer syntax in which the tags are compressed, too."""

EXTENSIONS = 1 << 20
"""Bytes between a NIfTI file's header and its values."""

COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
GREYS = ("MONOCHROME1", "MONOCHROME2")
SCALE = {"Slope": 1, "Intercept": 0}
SHOWN = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction")
Pixels = np.ndarray[Any, Any]


def suffix_of(path: Path) -> str:
    """The ending of a file's name, both parts of ``.nii.gz``, whatever slice is named behind it."""
    name = split_slice(path)[0].name.lower()
    return next((one for one in NIFTI if name.endswith(one)), Path(name).suffix)


def split_slice(path: Path) -> tuple[Path, int | None]:
    """The file and the slice that is named behind it, if one is; a file may have such a name itself."""
    found = NAMED.fullmatch(path.name)
    if found is None or not found[1].lower().endswith(SUFFIXES):
        return path, None
    return path.with_name(found[1]), int(found[2])


def open_medical(path: Path) -> Image.Image:
    """A file as a picture; what cannot be one is a :class:`DataError` that quotes nothing of it."""
    file, place = split_slice(path)
    read = _read_nifti if suffix_of(path) in NIFTI else _read_dicom
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they quote values of the file
        return Image.fromarray(read(file, place))


def _read_dicom(file: Path, place: int | None) -> Pixels:
    try:
        import pydicom
        from pydicom.pixels.utils import pixel_array
    except ImportError:
        raise DataError(_missing(file, "DICOM", "pydicom")) from None
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)  # its words quote values of the file
    try:
        if pydicom.filereader.read_file_meta_info(file).get("TransferSyntaxUID") == DEFLATED:
            raise DataError(  # it would be unpacked as a whole before any of its sizes can be read
                f"{file} is deflated as a whole, not its pixels; unpack it (for example with dcmconv +te)"
            )
        found = pydicom.dcmread(file, specific_tags=list(TAGS))
        rows, columns = int(found.Rows), int(found.Columns)
        frames, kind = int(found.get("NumberOfFrames") or 1), str(found.PhotometricInterpretation)
        packing = found.file_meta.TransferSyntaxUID
    except DataError:
        raise
    except Exception as error:
        raise DataError(_unreadable(file, "DICOM", error)) from None
    if rows * columns > MAX_PIXELS:
        raise DataError(f"{file} claims to have too many pixels; shrink it or remove it")
    if kind not in (*GREYS, *COLOURS):
        known = ", ".join((*GREYS, *COLOURS))
        raise DataError(f"{file}: a photometric interpretation other than {known}; convert it to one of them")
    chosen = _chosen(file, place, frames, "frames")
    try:
        pixels = pixel_array(found, index=chosen)  # colours as RGB, whatever the file has
    except (RuntimeError, NotImplementedError):
        name = packing.name if packing.is_transfer_syntax else "an unknown way"
        raise DataError(
            f"{file} is compressed as {name}, which needs a decoder that is not installed; decompress it "
            "(for example with gdcmconv --raw) or install pylibjpeg with its plug-ins"
        ) from None
    except Exception as error:
        raise DataError(_unreadable(file, "DICOM", error)) from None
    return _windowed(file, found, pixels, kind, chosen) if kind in GREYS else _eight_bits(found, pixels)


def _windowed(file: Path, found: Any, pixels: Pixels, kind: str, frame: int) -> Pixels:
    """Rescaled, through the window, bright where tissue is."""
    try:
        shown: dict[str, Any] = {name: found.get(name) for name in SHOWN}
        shown |= of_frame(file, frame) if found.get("NumberOfFrames") else {}
        slope, intercept = (float(shown[f"Rescale{name}"] or usual) for name, usual in SCALE.items())
        centre, width = _first(shown["WindowCenter"]), _first(shown["WindowWidth"])
        bits, signed = int(found.BitsStored), int(found.PixelRepresentation) == 1
    except Exception as error:
        raise DataError(_unreadable(file, "DICOM", error)) from None
    values = pixels.astype(np.float64) * slope + intercept
    if centre is not None and width is not None and width > 0:
        grey = _through(values, centre, width, str(shown["VOILUTFunction"] or "LINEAR"))
    else:
        least = -(1 << (bits - 1)) if signed else 0
        grey = _grey(values, *sorted(slope * level + intercept for level in (least, least + (1 << bits) - 1)))
    return 255 - grey if kind == "MONOCHROME1" else grey


def _through(values: Pixels, centre: float, width: float, function: str) -> Pixels:
    """A window as the standard has it (PS3.3, C.11.2.1)."""
    if function == "SIGMOID":
        return _grey(1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700))), 0.0, 1.0)
    if function == "LINEAR_EXACT" or width < 1:
        return _grey(values, centre - width / 2, centre + width / 2)
    return _grey(values, centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2)


def _first(value: Any) -> float | None:
    """Of several windows the first."""
    if value is None or value == "":
        return None
    return float(value[0] if hasattr(value, "__getitem__") and not isinstance(value, str) else value)


def _eight_bits(found: Any, pixels: Pixels) -> Pixels:
    bits = int(found.BitsStored)
    return (pixels >> (bits - 8) if bits > 8 else pixels).astype(np.uint8)


def _read_nifti(file: Path, place: int | None) -> Pixels:
    state = file.stat()
    values, low, high = _volume(file, state.st_mtime_ns, state.st_size)
    chosen = _chosen(file, place, values.shape[2], "slices")
    return _grey(values[:, :, chosen].T[::-1].astype(np.float64), low, high)


@lru_cache(maxsize=1)
def _volume(file: Path, changed: int, size: int) -> tuple[Pixels, float, float]:
    """The values of a volume in canonical axes, and the range that is shown. The last one is kept: slices of
    a volume are often asked for one after the other.
    """
    try:
        import nibabel
    except ImportError:
        raise DataError(_missing(file, "NIfTI", "nibabel")) from None
    logging.getLogger("nibabel").setLevel(logging.CRITICAL)
    try:
        kind = nibabel.Nifti1Image if _is_first(file) else nibabel.Nifti2Image
        volume = kind.from_filename(file)
        shape = tuple(int(side) for side in volume.shape)
    except DataError:
        raise
    except Exception as error:
        raise DataError(_unreadable(file, "NIfTI", error)) from None
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (2, 3) or 0 in shape:
        raise DataError(f"{file} has {len(shape)} dimensions; slices are taken from two or three: split it")
    needed = 8 * int(np.prod(shape, dtype=object))
    if needed > memory_limit() or shape[0] * shape[1] > MAX_PIXELS:
        raise DataError(f"{file} holds {in_words(needed)}, too much for this machine; split it")
    try:
        values = np.asarray(volume.dataobj, np.float32).reshape((*shape, 1)[:3])
        upright: Any = nibabel.as_closest_canonical  # which has no types
        turned = upright(volume.__class__(values, volume.affine))
        values = np.nan_to_num(np.asarray(turned.dataobj, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = float(volume.header["cal_min"]), float(volume.header["cal_max"])
    except Exception as error:
        raise DataError(_unreadable(file, "NIfTI", error)) from None
    if not (np.isfinite([low, high]).all() and high > low):
        low, high = float(values.min()), float(values.max())
    return values, low, high


def _is_first(file: Path) -> bool:
    """Whether a file says that it is of NIfTI's first version; the second has a longer header.

    What stands between header and values would be read whatever sizes it claims: it is measured before.
    """
    opener = gzip.open if file.name.lower().endswith(".gz") else open
    with opener(file, "rb") as content:
        start = content.read(4)
        order = "<" if start[1:] == b"\x01\x00\x00" or start[1:] == b"\x02\x00\x00" else ">"
        first = bool(struct.unpack(f"{order}i", start)[0] == 348)
        head = start + content.read(344 if first else 536)
        (begin,) = struct.unpack_from(f"{order}f" if first else f"{order}q", head, 108 if first else 168)
        if content.read(4)[:1] not in (b"", b"\0"):
            left = begin - len(head) - 4
            while left >= 16 or left < 0:
                (length,) = struct.unpack(f"{order}i4x", content.read(8))
                if not 8 <= length <= left <= EXTENSIONS:
                    raise DataError(f"{file} is damaged: what follows its header has no possible size")
                left -= len(content.read(length - 8)) + 8
    return first


def _chosen(file: Path, place: int | None, count: int, what: str) -> int:
    if place is None:
        return count // 2
    if place >= count:
        raise DataError(f"{file} has {count} {what}, from 0 to {count - 1}; there is no {place}")
    return place


def _grey(values: Pixels, low: float, high: float) -> Pixels:
    """From low to high as 0 to 255, in equal steps; beyond them black and white."""
    span = max(high - low, 1e-12)
    return np.clip(np.floor((values - low) / span * 255 + 0.5), 0, 255).astype(np.uint8)


def _missing(file: Path, kind: str, package: str) -> str:
    return f"{file}: reading {kind} needs {package}; install it with: pip install 'proxyfl[medical]'"


def _unreadable(file: Path, kind: str, error: Exception) -> str:
    return f"{file} cannot be read as {kind} ({type(error).__name__}); replace or remove it"
