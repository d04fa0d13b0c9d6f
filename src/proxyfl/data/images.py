"""Image files in class folders: listing them without leaving the folder, and decoding them."""

from __future__ import annotations

import itertools
import os
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from proxyfl.core.errors import DataError
from proxyfl.core.files import leads_into
from proxyfl.data import medical
from proxyfl.data.files import progress

PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
SUFFIXES = PICTURES | frozenset(medical.SUFFIXES)
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What Pillow may take a file for, whatever its name. Of the others one starts an interpreter (EPS)."""

MAX_PIXELS = 50_000_000
"""Decoding takes up to 16 bytes a pixel, most of it for a moment."""

DEEP_MODES = frozenset({"I", "I;16", "I;16B", "I;16L", "I;16N"})
GREY_MODES = frozenset({"1", "L"}) | DEEP_MODES
BITS = (8, 10, 12, 14, 16)
"""How many bits of grey instruments have. Sets whose largest levels differ a little agree in them."""

MOST_NAMED, LONGEST_NAME = 10, 120
"""Damaged images named in an error, and characters of each."""

MOST_UNREADABLE = 0.01
"""The share of damaged images from which on something is wrong with the data as a whole."""

FAULTS = (
    *(OSError, SyntaxError, ValueError, ArithmeticError, LookupError, TypeError, MemoryError, EOFError),
    *(RuntimeError, struct.error, zlib.error),
)
"""What Pillow's decoders raise on damaged files, the decompression bombs apart."""


def is_image(path: Path) -> bool:
    """Whether a file's name is that of an image; a slice may be named behind it."""
    return medical.suffix_of(path) in SUFFIXES


def list_folder(folder: Path, within: Path) -> tuple[list[Path], list[Path], int]:
    """The sub-folders and the images in ``folder``, each sorted by name, and the number of other entries.

    Hidden entries are passed over. A link that leads out of ``within`` is refused, not followed.
    """
    folders, files, others = [], [], 0
    home = within.resolve()
    if not leads_into(folder, home):
        raise DataError(f"{folder} is a link that leads out of {within}; copy the folder there instead")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            if entry.is_symlink() and not leads_into(path, home):
                raise DataError(f"{path} is a link that leads out of {within}; copy the file there instead")
            if entry.is_dir():
                folders.append(path)
            elif entry.is_file() and is_image(path):
                files.append(path)
            else:
                others += 1
    return sorted(folders, key=lambda path: path.name), sorted(files, key=lambda path: path.name), others


def every_image(folder: Path, root: Path) -> tuple[list[Path], int]:
    """Every image below a folder, sorted; linked folders are refused, since they may turn in circles."""
    folders, images, ignored = list_folder(folder, root)
    for inner in folders:
        if inner.is_symlink():
            raise DataError(f"{inner} is a linked folder; copy its images there instead")
        deeper, others = every_image(inner, root)
        images += deeper
        ignored += others
    return images, ignored


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    if medical.suffix_of(path) in medical.SUFFIXES:
        with medical.open_medical(path) as image:
            yield image
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise Image.DecompressionBombError
                yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(f"{path} claims to have too many pixels; shrink it or remove it") from None
    except FAULTS as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as an image ({reason}); replace or remove it") from None


def side_of(file: Path) -> int:
    """The shorter side of an image in pixels, from its header; 0 where it cannot be read."""
    try:
        with _opened(file) as image:
            return min(image.size)
    except DataError:
        return 0


@dataclass
class Survey:
    """What the headers of many images say, and what is wrong with those that cannot be read."""

    files: Sequence[Path]
    modes: dict[Path, str] = field(default_factory=dict)
    sizes: dict[Path, tuple[int, int]] = field(default_factory=dict)
    faults: dict[Path, str] = field(default_factory=dict)

    @property
    def grey(self) -> bool:
        """Whether every image has one channel."""
        return all(mode in GREY_MODES for mode in self.modes.values())

    @contextmanager
    def trying(self, file: Path) -> Iterator[None]:
        """Remember the fault of a file and go on with the others."""
        try:
            yield
        except DataError as error:
            self.faults.setdefault(file, str(error))

    def require_sound(self) -> None:
        """Raise where images are damaged: one error names them all, up to a bound."""
        if len(self.faults) == 1:
            raise DataError(*self.faults.values())
        if self.faults:
            raise DataError(
                f"{len(self.faults):,} of {len(self.files):,} images are damaged; replace or "
                f"remove them: {self.named}. The first: {next(iter(self.faults.values()))[:300]}"
            )

    @property
    def left_out(self) -> str:
        """A note where damaged images are left out."""
        share = len(self.faults) / max(1, len(self.files))
        if not share:
            return ""
        loud = "; that is more than 1 %: check where they come from" if share > MOST_UNREADABLE else ""
        count = f"{len(self.faults):,} of {len(self.files):,} images"
        return f"{count} cannot be read and are left out: {self.named}{loud}"

    @property
    def named(self) -> str:
        """The damaged images in one list, up to a bound."""
        here = Path.cwd()
        shown = (file.relative_to(here) if file.is_relative_to(here) else file for file in self.faults)
        names = ", ".join(str(file)[-LONGEST_NAME:] for file in itertools.islice(shown, MOST_NAMED))
        more = len(self.faults) - MOST_NAMED
        return names + (f" and {more:,} more" if more > 0 else "")


def survey(files: Sequence[Path]) -> Survey:
    """Look at the headers of all images."""
    found = Survey(files)
    for file in files:
        with found.trying(file), _opened(file) as image:
            found.modes[file], found.sizes[file] = image.mode, image.size
    return found


def decode_all(
    found: Survey, channels: int, size: int, title: str, *, leave_out: bool = False
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], str]:
    """The images of a survey as uint8 (N, channels, size, size), which of its files they are, and a line
    about those of 16 bits, if any.

    Damaged images are an error that names them, unless they are to be left out and others remain.

    Sixteen-bit files often hold fewer bits: how many, their largest grey level says. It is that of all of
    them, so that grey levels stay comparable.
    """
    deep = [file for file, mode in found.modes.items() if mode in DEEP_MODES]
    highest = 0
    for file in deep:
        with found.trying(file), _opened(file) as image:
            highest = max(highest, int(_levels(image).max()))
    bits = bits_for(highest)
    images = np.zeros((len(found.files), channels, size, size), np.uint8)
    with progress(title, len(found.files)) as advance:
        for place, file in enumerate(found.files):
            if file not in found.faults:
                with found.trying(file):
                    images[place] = decode(file, channels, size, bits)
            advance(1)
    sound = np.array([file not in found.faults for file in found.files], bool)
    if not leave_out or not sound.any():
        found.require_sound()
    note = f"{len(deep):,} 16-bit images with grey levels up to {highest:,} are read as {bits} bits"
    return images if sound.all() else images[sound], sound, note if deep else ""


def with_channels(images: np.ndarray[Any, Any], channels: int) -> np.ndarray[Any, Any]:
    """Arrays of images (N, 1 or 3, H, W) in grey or in colour, as :func:`decode` makes them of files."""
    if images.shape[1] == channels:
        return images
    if images.shape[1] == 1:
        return images.repeat(channels, axis=1)
    red, green, blue = (images[:, place].astype(np.uint32) for place in range(3))
    grey = (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16  # Pillow's weights
    return grey.astype(np.uint8)[:, None]


def bits_for(highest: int) -> int:
    """How many bits an instrument has whose largest grey level this is."""
    return next(bits for bits in BITS if highest < 1 << bits)


def decode(path: Path, channels: int, size: int | None = None, bits: int = 16) -> np.ndarray[Any, Any]:
    """The image as uint8 (channels, height, width), upright; ``size`` squeezes it to a square. A sixteen-bit
    file holds so many ``bits``.
    """
    with _opened(path) as image:
        if image.mode in DEEP_MODES:  # Pillow's own conversion would cut everything above 255 to white
            image = Image.fromarray((_levels(image) >> (bits - 8)).astype(np.uint8))
        image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
        if size is not None and image.size != (size, size):
            image = image.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _levels(image: Image.Image) -> np.ndarray[Any, Any]:
    """The grey levels of a sixteen-bit image."""
    levels = np.asarray(image)
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError("its grey levels do not fit in 16 bits")
    return levels
