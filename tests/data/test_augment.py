from __future__ import annotations

import platform
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.data.augment import (
    OPERATIONS,
    cutout,
    draw_operations,
    normalise,
    punch,
    strong,
    weak,
)

STRENGTHS = [*range(-9, 0), *range(1, 10)]
BLENDS = {"brightness", "colour", "contrast", "sharpness"}
# Pillow's blend is compiled C: where the compiler may fuse its product and sum (ARM), a whole number can
# come out one grey level apart. Everything else, everywhere, is identical.
BLEND_LEVELS = 0 if platform.machine() in {"x86_64", "AMD64"} else 1


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, shape, generator=seeded(seed)).to(torch.uint8)


def to_pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if len(image) == 1 else array))


def from_pil(image: Image.Image) -> Tensor:
    array = torch.from_numpy(np.array(image))
    return array[None] if array.dim() == 2 else array.permute(2, 0, 1)


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def pil_operation(name: str, image: Image.Image, v: int) -> Image.Image:
    """The operation as a program that handles one Pillow image at a time does it."""
    factor = 0.09 * abs(v) + 0.05
    pixels = int(0.03 * v * image.width)
    match name:
        case "auto_contrast":
            return ImageOps.autocontrast(image)
        case "brightness":
            return ImageEnhance.Brightness(image).enhance(factor)
        case "colour":
            return ImageEnhance.Color(image).enhance(factor)
        case "contrast":
            return ImageEnhance.Contrast(image).enhance(factor)
        case "equalise":
            return ImageOps.equalize(image)
        case "identity":
            return image
        case "posterise":
            return ImageOps.posterize(image, int(0.4 * abs(v)) + 4)
        case "rotate":
            return image.rotate(3 * v)
        case "sharpness":
            return ImageEnhance.Sharpness(image).enhance(factor)
        case "shear_x":
            return affine(image, 1, 0.03 * v, 0, 0, 1, 0)
        case "shear_y":
            return affine(image, 1, 0, 0, 0.03 * v, 1, 0)
        case "solarise":
            return ImageOps.solarize(image, 256 - int(25.6 * abs(v)))
        case "translate_x":
            return affine(image, 1, 0, pixels, 0, 1, 0)
        case "translate_y":
            return affine(image, 1, 0, 0, 0, 1, pixels)
    raise AssertionError(name)


def gallery(channels: int, size: int) -> Tensor:
    """Noise, faint noise, smooth slopes, constants, extremes, and a lone bright pixel."""
    slope = torch.linspace(0, 255, size)
    across, down = slope.expand(size, size), slope[:, None].expand(size, size)
    slopes = torch.stack([across, down, (across + down) / 2])
    board = (torch.arange(size) + torch.arange(size)[:, None]) % 2 * 255
    lone = torch.zeros(size, size)
    lone[size // 2, size // 3] = 255
    rings = 128 + 100 * torch.sin(slope / 20) * torch.cos(slope[:, None] / 30)
    flat = [torch.full((size, size), grey) for grey in (0, 50, 127, 200, 255)]
    planes = [plane.expand(channels, size, size) for plane in (board, lone, rings, *flat)]
    pictures = [
        noise(channels, size, size, seed=1),
        noise(channels, size, size, seed=2),
        noise(channels, size, size, seed=3, low=90, high=120),
        noise(channels, size, size, seed=4, high=2) * 255,
        slopes[:channels],
        *planes,
    ]
    return torch.stack([picture.to(torch.uint8) for picture in pictures])


@pytest.mark.parametrize("size", [8, 28, 32])
@pytest.mark.parametrize("channels", [1, 3], ids=["L", "RGB"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_gives_what_pillow_gives(name: str, channels: int, size: int) -> None:
    pictures = gallery(channels, size)
    batch = pictures.repeat(len(STRENGTHS), 1, 1, 1)
    strengths = torch.tensor(STRENGTHS).repeat_interleave(len(pictures))
    before = batch.clone()

    ours = OPERATIONS[name](batch, strengths)

    theirs = torch.stack(
        [
            from_pil(pil_operation(name, to_pil(image), v))
            for image, v in zip(batch, strengths.tolist(), strict=True)
        ]
    )
    assert ours.dtype == torch.uint8
    assert (ours.int() - theirs.int()).abs().max() <= (BLEND_LEVELS if name in BLENDS else 0)
    assert torch.equal(batch, before)
    assert ours.data_ptr() != batch.data_ptr()


def test_there_are_fourteen_operations() -> None:
    assert len(OPERATIONS) == 14


def test_auto_contrast_agrees_for_every_pair_of_ends() -> None:
    """Where the stretched value is a whole number, double rounding decides; so try all lows and highs."""
    low, high = torch.triu_indices(256, 256, 1)
    step = torch.arange(64)
    levels = low[:, None] + (high - low)[:, None] * step // 63
    batch = levels.to(torch.uint8).view(-1, 1, 8, 8)[::7]
    ours = OPERATIONS["auto_contrast"](batch, torch.ones(len(batch), dtype=torch.int64))
    theirs = torch.stack([from_pil(ImageOps.autocontrast(to_pil(image))) for image in batch])
    assert torch.equal(ours, theirs)


@pytest.mark.skipif(BLEND_LEVELS > 0, reason="later operations would enlarge a difference in the blend")
@settings(max_examples=30, deadline=None)
@given(size=st.integers(8, 41), channels=st.sampled_from([1, 3]), seed=st.integers(0, 2**31))
def test_strong_view_is_the_chain_of_its_parts_in_pillow(size: int, channels: int, seed: int) -> None:
    images = noise(6, channels, size, size, seed=seed)
    views = strong(images, seeded(seed))

    replay = seeded(seed)
    start = weak(images, replay)
    choice, strength, applied = draw_operations(6, replay)
    centres = torch.rand((2, 6), generator=replay) * size
    names = list(OPERATIONS)
    for i, view in enumerate(views):
        image = to_pil(start[i])
        for slot in range(2):
            if applied[slot, i]:
                image = pil_operation(names[choice[slot, i]], image, int(strength[slot, i]))
        assert torch.equal(view, from_pil(pil_hole(image, *centres[:, i].tolist())))


def pil_hole(image: Image.Image, x: float, y: float) -> Image.Image:
    size = image.width
    side = size // 2
    left, top = int(max(0, x - side / 2)), int(max(0, y - side / 2))
    corners = (left, top, int(min(size, left + side)), int(min(size, top + side)))
    image = image.copy()
    ImageDraw.Draw(image).rectangle(corners, fill=127 if image.mode == "L" else (127, 127, 127))
    return image


@pytest.mark.parametrize("size", [8, 11, 28, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_hole_is_pillows_rectangle(channels: int, size: int) -> None:
    places = torch.tensor([0.0, 0.24, 0.25, 0.26, 0.3, 0.5, 0.74, 0.75, 0.9, 0.999]) * size
    centres = torch.cartesian_prod(places, places).T
    images = noise(100, channels, size, size)
    holed = punch(images, centres)
    for before, after, (x, y) in zip(images, holed, centres.T.tolist(), strict=True):
        assert torch.equal(after, from_pil(pil_hole(to_pil(before), x, y)))


@pytest.mark.parametrize(
    ("x", "y", "columns", "rows"),
    [
        (16.0, 16.0, range(8, 25), range(8, 25)),
        (0.0, 31.9, range(17), range(23, 32)),
        (8.9, 23.5, range(17), range(15, 32)),
        (24.0, 9.0, range(16, 32), range(1, 18)),
    ],
)
def test_hole_at_32_pixels(x: float, y: float, columns: range, rows: range) -> None:
    holed = punch(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([[x], [y]]))
    expected = torch.zeros(32, 32, dtype=torch.uint8)
    expected[rows.start : rows.stop, columns.start : columns.stop] = 127
    assert torch.equal(holed, expected.expand(1, 3, 32, 32))


def test_cutout_spreads_its_centres_over_the_image() -> None:
    holed = cutout(torch.zeros(4000, 1, 32, 32, dtype=torch.uint8), seeded(3)) == 127
    area = holed.sum((1, 2, 3))
    assert area.min() == 81
    assert area.max() == 289
    for corner in (holed[:, 0, 0, 0], holed[:, 0, 0, -1], holed[:, 0, -1, 0], holed[:, 0, -1, -1]):
        assert 0.058 < corner.float().mean() < 0.101  # (9/32)²
    assert 0.571 < holed[:, 0, 16, 16].float().mean() < 0.649  # (25/32)²
    assert not torch.equal(holed.any(2), holed.any(3))


def crops(image: Tensor) -> dict[bytes, tuple[bool, int, int]]:
    """Every (mirrored, row, column) crop of the reflection-padded 32 × 32 image."""
    found = {}
    for mirrored in (False, True):
        turned = image.flip(2) if mirrored else image
        padded = np.pad(turned.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
        for row in range(9):
            for column in range(9):
                found[padded[:, row : row + 32, column : column + 32].tobytes()] = (mirrored, row, column)
    assert len(found) == 162
    return found


@pytest.mark.parametrize("channels", [1, 3])
def test_weak_view_is_a_mirrored_crop(channels: int) -> None:
    images = noise(8, channels, 32, 32)
    for image, view in zip(images, weak(images, seeded()), strict=True):
        assert view.numpy().tobytes() in crops(image)


def test_weak_views_are_uniform_over_mirrorings_and_crops() -> None:
    image = noise(1, 32, 32)
    known = crops(image)
    views = weak(image.expand(8100, 1, 32, 32), seeded(1))
    seen = [known[view.numpy().tobytes()] for view in views]
    assert set(seen) == set(known.values())
    assert 3825 <= sum(mirrored for mirrored, _, _ in seen) <= 4275
    for axis in (1, 2):
        assert all(759 <= times <= 1041 for times in Counter(where[axis] for where in seen).values())


def test_without_flip_nothing_is_mirrored_and_the_crops_stay() -> None:
    image = noise(3, 32, 32)
    known = crops(image)
    batch = image.expand(200, 3, 32, 32)
    plain = [known[view.numpy().tobytes()] for view in weak(batch, seeded(2), flip=False)]
    mirrored = [known[view.numpy().tobytes()] for view in weak(batch, seeded(2))]
    assert not any(flipped for flipped, _, _ in plain)
    assert [where[1:] for where in plain] == [where[1:] for where in mirrored]


def test_strong_view_without_flip_starts_from_the_unmirrored_crop() -> None:
    images = noise(50, 3, 32, 32)
    replay = seeded(5)
    start = weak(images, replay, flip=False)
    applied = draw_operations(50, replay).applied
    views = strong(images, seeded(5), flip=False)
    untouched = (~applied).all(0)
    assert 5 <= untouched.sum() <= 22
    same = (views == start) | (views == 127)
    assert same[untouched].all()


@pytest.mark.parametrize(("size", "padding"), [(8, 1), (15, 1), (16, 2), (28, 3), (40, 5)])
def test_padding_follows_the_size(size: int, padding: int) -> None:
    """A bright dot in the middle moves by at most the padding, and by all of it at times."""
    images = torch.zeros(400, 1, size, size, dtype=torch.uint8)
    middle = size // 2
    images[:, :, middle, middle] = 255
    for axis in (1, 2):
        place = weak(images, seeded(), flip=False).squeeze(1).long().argmax(axis).amax(1)
        assert (place - middle).unique().tolist() == list(range(-padding, padding + 1))


@pytest.mark.parametrize(
    ("size", "moves"), [(32, [0, 1, 2, 3, 4, 5, 6, 7, 8]), (8, [0, 0, 0, 0, 1, 1, 1, 1, 2])]
)
def test_translation_follows_the_size(size: int, moves: list[int]) -> None:
    images = torch.arange(1, size + 1).expand(9, 1, size, size).to(torch.uint8)
    moved = OPERATIONS["translate_x"](images, torch.arange(1, 10))
    assert (moved[:, 0, 0, 0] - 1).tolist() == moves
    assert (moved[:, 0, 0] == 0).sum(1).tolist() == moves


def test_draws_are_fair() -> None:
    """Bounds are five standard deviations of the binomial counts."""
    choice, strength, applied = draw_operations(14_000, seeded(11))
    assert choice.shape == strength.shape == applied.shape == (2, 14_000)
    per_operation = choice.flatten().bincount(minlength=14)
    assert len(per_operation) == 14
    assert all(1785 <= times <= 2215 for times in per_operation.tolist())
    assert 848 <= (choice[0] == choice[1]).sum() <= 1152
    assert 13_580 <= applied.sum() <= 14_420
    assert 13_580 <= (strength > 0).sum() <= 14_420
    per_strength = strength.abs().flatten().bincount(minlength=10)
    assert per_strength[0] == 0
    assert len(per_strength) == 10
    assert all(2848 <= times <= 3374 for times in per_strength[1:].tolist())


@pytest.mark.parametrize("view", [weak, strong, cutout])
def test_same_seed_same_bits_and_another_seed_others(view) -> None:
    images = noise(40, 3, 32, 32)
    first = view(images, seeded(1))
    assert torch.equal(first, view(images, seeded(1)))
    assert not torch.equal(first, view(images, seeded(2)))


@pytest.mark.parametrize("view", [weak, strong, cutout])
@pytest.mark.parametrize("channels", [1, 3])
def test_input_stays_untouched(view, channels: int) -> None:
    images = noise(40, channels, 16, 16)
    before = images.clone()
    result = view(images, seeded())
    assert result.shape == images.shape
    assert result.dtype == torch.uint8
    assert torch.equal(images, before)


def test_number_of_draws_depends_on_the_count_alone() -> None:
    def state(images: Tensor, **options: bool) -> Tensor:
        generator = seeded(7)
        strong(images, generator, **options)
        return generator.get_state()

    expected = state(noise(30, 3, 32, 32))
    assert torch.equal(state(noise(30, 1, 8, 8, seed=9)), expected)
    assert torch.equal(state(noise(30, 3, 32, 32), flip=False), expected)
    assert not torch.equal(state(noise(29, 3, 32, 32)), expected)


def test_memory_layout_does_not_matter() -> None:
    images = noise(20, 3, 32, 32)
    expected = strong(images, seeded())
    assert torch.equal(strong(images.contiguous(memory_format=torch.channels_last), seeded()), expected)
    assert torch.equal(strong(images.repeat_interleave(2, 0)[::2], seeded()), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_no_images_at_all(channels: int) -> None:
    nothing = torch.empty(0, channels, 16, 16, dtype=torch.uint8)
    for view in (weak, strong, cutout):
        assert view(nothing, seeded()).shape == nothing.shape
    for operation in OPERATIONS.values():
        assert operation(nothing, torch.empty(0, dtype=torch.int64)).shape == nothing.shape
    assert normalise(nothing, [0.5] * channels, [0.5] * channels).shape == nothing.shape


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 32, 32),
        noise(2, 4, 32, 32),
        noise(2, 3, 32, 16),
        noise(2, 3, 7, 7),
        noise(3, 32, 32),
    ],
    ids=["float", "four channels", "not square", "too small", "no batch"],
)
@pytest.mark.parametrize("view", [weak, strong, cutout])
def test_images_that_do_not_fit_are_refused(view, images: Tensor) -> None:
    with pytest.raises(DataError, match="uint8 images"):
        view(images, seeded())


def test_normalise_on_literal_numbers() -> None:
    pixels = torch.tensor([0, 128, 255, 100], dtype=torch.uint8).view(1, 1, 2, 2).repeat(2, 3, 1, 1)
    result = normalise(pixels, (0.5, 0.4914, 0.4465), (0.25, 0.2471, 0.2616))
    expected = [
        [-2.0, 0.007843137, 2.0, -0.431372549],
        [-1.988668555, 0.042738909, 2.058276002, -0.401631474],
        [-1.706804281, 0.212006056, 2.115825688, -0.207733705],
    ]
    assert result.dtype == torch.float32
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result.flatten(2), torch.tensor(expected).expand(2, 3, 4), rtol=0, atol=1e-6)


def test_normalise_takes_one_channel_and_one_image() -> None:
    one = normalise(noise(1, 8, 8), [0.5], [0.5])
    assert one.shape == (1, 8, 8)
    assert -1 <= one.min() < -0.9 < 0.9 < one.max() <= 1
    assert normalise(noise(2, 1, 8, 8), [0.5], [0.5]).stride() == (64, 1, 8, 1)


def test_normalise_refuses_what_does_not_fit() -> None:
    with pytest.raises(DataError, match=r"3 channels .*1 and 3"):
        normalise(noise(2, 3, 8, 8), [0.5], [0.5, 0.5, 0.5])
    with pytest.raises(DataError, match="uint8"):
        normalise(torch.zeros(2, 3, 8, 8), [0.5] * 3, [0.5] * 3)
