"""How images are prepared, as ``preprocessor_config.json`` says: read as data, no code is run for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ConfigError

FILE = "preprocessor_config.json"
BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers for them."""


def preparation(file: Path) -> dict[str, Any]:
    """The fields of an :class:`~proxyfl.encoders.encoder.Encoder` beside its network."""
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
        given = given.get("image_processor", given)
        cut = given.get("do_center_crop", "crop_size" in given)
        size = _side(given.get("size", {})) if given.get("do_resize", True) else 0
        crop = _side(given["crop_size"]) if cut else 0
        scaled = given.get("do_normalize", True)
        found = {
            "size": size,
            "crop": crop if crop != size else 0,
            "mean": tuple(map(float, given["image_mean"])) if scaled else (0.0,),
            "std": tuple(map(float, given["image_std"])) if scaled else (1.0,),
            "resample": {BILINEAR: "bilinear", BICUBIC: "bicubic"}[given.get("resample", BILINEAR)],
        }
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} does not define how images are prepared ({error}); get it from the model's source"
        ) from None
    if abs(float(given.get("rescale_factor", 1 / 255)) * 255 - 1) > 1e-3 or not given.get("do_rescale", True):
        raise ConfigError(
            f"{file} scales values by something other than 1 / 255; such encoders are not supported"
        )
    return found


def _side(size: Any) -> int:
    """The side of a square."""
    if isinstance(size, int):
        return size
    sides = {int(size[name]) for name in ("height", "width", "shortest_edge") if size.get(name)}
    if len(sides) != 1:
        raise ValueError(f"{size} is not a square")
    return sides.pop()
