"""Image files in class folders: listing them without leaving the folder, and decoding them."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from proxyfl.core.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What Pillow may take a file for, whatever its name. Of the others one starts an interpreter (EPS)."""

MAX_PIXELS = 50_000_000
"""Decoding takes up to 16 bytes a pixel, most of it for a moment."""

GREY_MODES = frozenset({"1", "L", "I", "I;16", "I;16B", "I;16L", "I;16N"})
FAULTS = (
    *(OSError, SyntaxError, ValueError, ArithmeticError, LookupError, TypeError, MemoryError, EOFError),
    *(RuntimeError, struct.error, zlib.error),
)
"""What Pillow's decoders raise on damaged files, the decompression bombs apart."""


def _inside(path: Path, home: Path) -> bool:
    try:
        return path.resolve().is_relative_to(home)
    except (OSError, RuntimeError):  # a link that leads to itself
        return False


def list_folder(folder: Path, within: Path) -> tuple[list[Path], list[Path], int]:
    """The sub-folders and the images in ``folder``, each sorted by name, and the number of other entries.

    Hidden entries are passed over. A link that leads out of ``within`` is refused, not followed.
    """
    folders, files, others = [], [], 0
    home = within.resolve()
    if not _inside(folder, home):
        raise DataError(f"{folder} is a link that leads out of {within}; copy the folder there instead")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_symlink() and not _inside(path, home):
                raise DataError(f"{path} is a link that leads out of {within}; copy the file there instead")
            if entry.is_dir():
                folders.append(path)
            elif entry.is_file() and path.suffix.lower() in SUFFIXES:
                files.append(path)
            else:
                others += 1
    return sorted(folders, key=lambda path: path.name), sorted(files, key=lambda path: path.name), others


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{path} claims to have too many pixels; shrink it or take it away") from None
    except FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as an image ({reason}); replace it or take it away") from None


def is_grey(path: Path) -> bool:
    """Whether the image has one channel, from its header alone."""
    with _opened(path) as image:
        return image.mode in GREY_MODES


def decode(path: Path, channels: int, size: int | None = None) -> np.ndarray[Any, Any]:
    """The image as uint8 (channels, height, width), upright; ``size`` squeezes it to a square."""
    with _opened(path) as image:
        if image.mode.startswith("I"):
            image = _from_sixteen_bits(image)
        image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Sixteen-bit grey scaled to eight; Pillow's own conversion would cut everything above 255 to white."""
    levels = np.asarray(image)
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError("its grey levels do not fit in 16 bits")
    return Image.fromarray((levels >> 8).astype(np.uint8))
