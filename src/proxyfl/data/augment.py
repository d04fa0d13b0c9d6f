"""Weak and strong views of a whole batch of uint8 images at once.

The weak view mirrors and shifts; the strong one adds two of fourteen RandAugment operations and a grey
hole. Each operation gives what Pillow gives for that image, in mode RGB (3 channels) or L (1 channel).
That settles the arithmetic below: Pillow's integer grey conversion, its truncating float32 blend and its
16.16 fixed-point coordinates.

Sizes follow the image's side H, so that H = 32 gives the published numbers:

=====================  ======================  =======================
size                   side H                  at H = 32
=====================  ======================  =======================
padding of the crop    max(1, H // 8)          4
translation            int(0.03 v H)           int(0.96 v), 0 to 8
hole of the cutout     H // 2                  16, end pixels included
=====================  ======================  =======================

Random numbers come from the CPU generator passed in. How many are drawn depends on the number of images
alone, never on what the images or earlier draws contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.errors import DataError

Operation = Callable[[Tensor, Tensor], Tensor]
"""Takes uint8 images (N, C, H, H) and strengths (N,) int64; returns new images.

A strength is v = 1..9, negative where a geometric operation goes the other way; the others ignore its sign.
"""
Matrix = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the output pixel at (x, y) shows the input at (a x + b y + c, d x + e y + f)."""

STRONGEST = 9
OPERATIONS_PER_IMAGE = 2
GREY = 127


def weak(images: Tensor, generator: torch.Generator, *, flip: bool = True) -> Tensor:
    """Mirror half of the images (where ``flip``), then crop each at random after reflection padding."""
    _check(images)
    count, size = len(images), images.shape[-1]
    padding = _padding(size)
    mirrored = torch.randint(2, (count,), generator=generator).bool()
    offsets = torch.randint(2 * padding + 1, (2, count), generator=generator)
    if not flip:
        mirrored.zero_()
    return _flip_and_crop(images, mirrored.to(images.device), offsets.to(images.device))


def strong(images: Tensor, generator: torch.Generator, *, flip: bool = True) -> Tensor:
    """A weak view, then RandAugment, then cutout."""
    views = weak(images, generator, flip=flip)
    plan = draw_operations(len(images), generator)
    for choice, strength, applied in zip(*plan, strict=True):
        _apply_operations(views, choice, strength, applied)
    return cutout(views, generator)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x / 255 - mean) / std per channel, in float32; a batch comes back in channels_last memory format."""
    if images.dtype != torch.uint8 or images.dim() < 3:
        raise DataError(f"normalise takes uint8 images (…, C, H, W), not {_describe(images)}")
    channels, height, width = images.shape[-3:]
    if not len(mean) == len(std) == channels:
        raise DataError(
            f"images of {channels} channels need as many means and stds, not {len(mean)} and {len(std)}"
        )
    result = torch.empty((*images.shape[:-3], height, width, channels), device=images.device)
    for channel, (centre, spread) in enumerate(zip(mean, std, strict=True)):
        shift = torch.tensor(-centre / spread, dtype=torch.float32, device=images.device)
        pixels = images[..., channel, :, :]
        torch.add(shift, pixels, alpha=1 / (255 * spread), out=result[..., channel])
    return result.movedim(-1, -3)


def cutout(images: Tensor, generator: torch.Generator) -> Tensor:
    """Grey out one square per image, its centre uniform over the image and the part outside cut off."""
    _check(images)
    centres = torch.rand((2, len(images)), generator=generator) * images.shape[-1]
    return punch(images, centres.to(images.device))


def punch(images: Tensor, centres: Tensor) -> Tensor:
    """Grey holes around ``centres`` (x in row 0, y in row 1), in pixels.

    As Pillow draws rectangles, the far edge belongs to the hole: one of side 16 is up to 17 pixels wide.
    """
    size = images.shape[-1]
    side = size // 2
    near = (centres - side / 2).clamp(min=0).floor()[..., None]
    position = torch.arange(size, device=images.device)
    columns, rows = ((position >= near) & (position <= near + side)).to(torch.uint8)
    # Products of uint8 run vectorised, a masked fill does not.
    hole = (rows[:, :, None] * columns[:, None, :])[:, None]
    return images.mul(hole ^ 1).add(hole * GREY)


class Plan(NamedTuple):
    """RandAugment's draws, each (operations per image, N): index into OPERATIONS, ±v, and whether applied."""

    choice: Tensor
    strength: Tensor
    applied: Tensor


def draw_operations(count: int, generator: torch.Generator) -> Plan:
    """Two operations per image with replacement, v uniform in 1..9, sign and application by fair coins."""
    shape = (OPERATIONS_PER_IMAGE, count)
    choice = torch.randint(len(OPERATIONS), shape, generator=generator)
    v = torch.randint(1, STRONGEST + 1, shape, generator=generator)
    sign = 2 * torch.randint(2, shape, generator=generator) - 1
    applied = torch.randint(2, shape, generator=generator).bool()
    return Plan(choice, sign * v, applied)


def _apply_operations(images: Tensor, choice: Tensor, strength: Tensor, applied: Tensor) -> None:
    """One operation per image, in place. Images that share an operation go through it together."""
    idle = len(OPERATIONS)
    code = torch.where(applied, choice, idle)
    order = code.argsort(stable=True)
    counts = code.bincount(minlength=idle + 1).tolist()
    members = torch.split(order.to(images.device), counts)
    strengths = torch.split(strength[order].to(images.device), counts)
    for operation, chosen, v in zip(OPERATIONS.values(), members, strengths, strict=False):
        if len(chosen) and operation is not identity:
            images.index_copy_(0, chosen, operation(images.index_select(0, chosen), v))


def _flip_and_crop(images: Tensor, mirrored: Tensor, offsets: Tensor) -> Tensor:
    """Mirror, pad and crop by looking pixels up; ``offsets`` (rows, columns) count from the padded corner."""
    count, channels, size, _ = images.shape
    position = torch.arange(size, device=images.device)
    away = (position + offsets[..., None] - _padding(size)).abs()
    rows, columns = torch.minimum(away, 2 * (size - 1) - away)
    columns = torch.where(mirrored[:, None], size - 1 - columns, columns)
    # Whole rows first, then columns: neither needs an index for every pixel.
    plane = torch.arange(count * channels, device=images.device).view(count, channels, 1)
    moved = images.reshape(-1, size).index_select(0, (plane * size + rows[:, None]).flatten())
    return moved.view(images.shape).gather(3, columns[:, None, None, :].expand(images.shape))


def _gather_pixels(flat: Tensor, source: Tensor) -> Tensor:
    """Pixels (N, C, length) at ``source`` (N, H, W), the same places in every channel."""
    count, channels, _ = flat.shape
    places = source.flatten(1)[:, None].expand(-1, channels, -1)
    return flat.gather(2, places).view(count, channels, *source.shape[1:])


def identity(images: Tensor, v: Tensor) -> Tensor:
    return images.clone()


def auto_contrast(images: Tensor, v: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel of one value stays."""
    # float64 as in Pillow: where the exact result is a whole number, rounding decides which side it falls.
    home = images.device
    pixels = images.to("cpu" if home.type == "mps" else home).double()
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    flat = high <= low
    # A true division: a Python number over a tensor multiplies by the rounded reciprocal instead.
    scale = (torch.full_like(low, 255.0) / (high - low)).masked_fill(flat, 1.0)
    offset = (-low * scale).masked_fill(flat, 0.0)
    return (pixels * scale + offset).clamp(0, 255).to(torch.uint8).to(home)


def equalise(images: Tensor, v: Tensor) -> Tensor:
    """Flatten each channel's histogram."""
    pixels = images.flatten(0, 1).flatten(1).long()
    planes, length = pixels.shape
    start = 256 * torch.arange(planes, device=images.device)[:, None]
    histogram = (pixels + start).flatten().bincount(minlength=256 * planes).view(planes, 256)
    brightest = histogram.gather(1, pixels.amax(1, keepdim=True))
    step = (length - brightest) // 255
    below = histogram.cumsum(1) - histogram
    level = (below + step // 2) // step.clamp(min=1)
    # Too few distinct pixels for a step: the channel stays as it is.
    table = torch.where(step == 0, torch.arange(256, device=images.device), level.clamp(max=255))
    return table.to(torch.uint8).gather(1, pixels).view(images.shape)


def posterise(images: Tensor, v: Tensor) -> Tensor:
    """Keep the int(0.4 v) + 4 highest bits."""
    dropped = 4 - 2 * v.abs() // 5
    keep = 256 - 2**dropped
    return images & _per_image(keep.to(torch.uint8))


def solarise(images: Tensor, v: Tensor) -> Tensor:
    """Invert pixels from 256 - int(25.6 v) upwards."""
    threshold = 256 - 256 * v.abs() // 10
    return torch.where(images < _per_image(threshold.to(torch.uint8)), images, 255 - images)


def brightness(images: Tensor, v: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(torch.zeros((), device=images.device), images, v)


def colour(images: Tensor, v: Tensor) -> Tensor:
    """Blend with the grey version; one channel is grey already."""
    return images.clone() if images.shape[1] == 1 else _blend(_luminance(images), images, v)


def contrast(images: Tensor, v: Tensor) -> Tensor:
    """Blend with the image's mean grey."""
    total = _luminance(images).long().sum((1, 2, 3), keepdim=True)
    area = images.shape[-2] * images.shape[-1]
    return _blend((2 * total + area) // (2 * area), images, v)


def sharpness(images: Tensor, v: Tensor) -> Tensor:
    """Blend with the image smoothed by a 3 × 3 kernel (centre 5, others 1); the border pixels stay."""
    wide = images.to(torch.int32)
    rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
    box = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inner = wide[:, :, 1:-1, 1:-1]
    # The weights add up to 13, and no sum of pixels over 13 ends in exactly one half: this is rounding.
    inner.copy_((box + 4 * inner + 6) // 13)
    return _blend(wide, images, v)


def rotate(images: Tensor, v: Tensor) -> Tensor:
    """Turn by 3 v degrees, anticlockwise where v > 0."""
    return _warp(images, v, _rotation)


def shear_x(images: Tensor, v: Tensor) -> Tensor:
    """Move each row by 0.03 v times its distance from the top, to the left where v > 0."""
    return _warp(images, v, _shear_x)


def shear_y(images: Tensor, v: Tensor) -> Tensor:
    """Move each column by 0.03 v times its distance from the left, upwards where v > 0."""
    return _warp(images, v, _shear_y)


def translate_x(images: Tensor, v: Tensor) -> Tensor:
    """Move by int(0.03 v H) whole pixels, to the left where v > 0."""
    return _warp(images, v, _translation_x)


def translate_y(images: Tensor, v: Tensor) -> Tensor:
    """Move by int(0.03 v H) whole pixels, upwards where v > 0."""
    return _warp(images, v, _translation_y)


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "auto_contrast": auto_contrast,
        "brightness": brightness,
        "colour": colour,
        "contrast": contrast,
        "equalise": equalise,
        "identity": identity,
        "posterise": posterise,
        "rotate": rotate,
        "sharpness": sharpness,
        "shear_x": shear_x,
        "shear_y": shear_y,
        "solarise": solarise,
        "translate_x": translate_x,
        "translate_y": translate_y,
    }
)


def _blend(degenerate: Tensor, images: Tensor, v: Tensor) -> Tensor:
    """degenerate + factor (image - degenerate), factor = 0.09 v + 0.05, in float32 and truncated."""
    factor = _per_image(_enhance_factors(v.device)[v.abs()])
    base = degenerate.float()
    # Product and sum apart: a fused multiply-add would round whole numbers to the other side.
    return (base + factor * (images.float() - base)).to(torch.uint8)


def _luminance(images: Tensor) -> Tensor:
    """Pillow's conversion to mode L, (N, 1, H, W) int32."""
    wide = images.to(torch.int32)
    if images.shape[1] == 1:
        return wide
    red, green, blue = wide.unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)[:, None]


def _warp(images: Tensor, v: Tensor, matrix_of: Callable[[int, int], Matrix]) -> Tensor:
    """Affine map with nearest neighbours and black where the source lies outside."""
    size = images.shape[-1]
    a, b, c, d, e, f = _fixed_point(matrix_of, size, v.device)[:, v + STRONGEST, None]
    step = torch.arange(size, device=v.device)
    source_x = ((a * step + c)[:, None, :] + (b * step)[:, :, None]) >> 16
    source_y = ((d * step + f)[:, None, :] + (e * step)[:, :, None]) >> 16
    inside = (source_x >= 0) & (source_x < size) & (source_y >= 0) & (source_y < size)
    black = size * size
    with_black = F.pad(images.flatten(2), (0, 1))
    return _gather_pixels(with_black, torch.where(inside, source_y * size + source_x, black))


@lru_cache(maxsize=64)
def _fixed_point(matrix_of: Callable[[int, int], Matrix], size: int, device: torch.device) -> Tensor:
    """The matrices for v = -9..9 as 16.16 fixed-point numbers (6, 19), taken at pixel centres."""
    columns = []
    for v in range(-STRONGEST, STRONGEST + 1):
        a, b, c, d, e, f = matrix_of(v, size)
        centred = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
        columns.append([math.floor(number * 65536.0 + 0.5) for number in centred])
    return torch.tensor(columns, device=device).T


def _rotation(v: int, size: int) -> Matrix:
    angle = -math.radians(3 * v % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    centre = size / 2
    return (
        cosine,
        sine,
        cosine * -centre + sine * -centre + centre,
        -sine,
        cosine,
        -sine * -centre + cosine * -centre + centre,
    )


def _shear_x(v: int, size: int) -> Matrix:
    return (1.0, 0.03 * v, 0.0, 0.0, 1.0, 0.0)


def _shear_y(v: int, size: int) -> Matrix:
    return (1.0, 0.0, 0.0, 0.03 * v, 1.0, 0.0)


def _translation_x(v: int, size: int) -> Matrix:
    return (1.0, 0.0, _pixels_moved(v, size), 0.0, 1.0, 0.0)


def _translation_y(v: int, size: int) -> Matrix:
    return (1.0, 0.0, 0.0, 0.0, 1.0, _pixels_moved(v, size))


def _pixels_moved(v: int, size: int) -> float:
    return math.copysign(3 * abs(v) * size // 100, v)


@lru_cache(maxsize=8)
def _enhance_factors(device: torch.device) -> Tensor:
    factors = [0.09 * v + 0.05 for v in range(STRONGEST + 1)]
    return torch.tensor(factors, dtype=torch.float32, device=device)


def _per_image(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _padding(size: int) -> int:
    return max(1, size // 8)


def _check(images: Tensor) -> None:
    fits = images.dtype == torch.uint8 and images.dim() == 4 and images.shape[1] in (1, 3)
    if not fits or images.shape[-1] != images.shape[-2] or images.shape[-1] < 8:
        raise DataError(
            f"views need uint8 images (N, 1 or 3, H, H) with H >= 8, not {_describe(images)}; "
            "resize the data set with data.image_size"
        )


def _describe(images: Tensor) -> str:
    return f"{images.dtype} {tuple(images.shape)}".removeprefix("torch.")
