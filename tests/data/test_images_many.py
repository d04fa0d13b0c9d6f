"""Many image files at once: what sixteen bits hold, and every damaged file named in one error."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from source_formats import save_image

from proxyfl.core.errors import DataError
from proxyfl.data.files import progress
from proxyfl.data.images import decode, decode_all, survey, with_channels
from proxyfl.data.reader.arrays import channels_first
from proxyfl.data.sources import load


def x_rays(folder: Path, highest: int = 4095, count: int = 4) -> None:
    """Images whose grey levels go up to ``highest`` in sixteen bits; the first of each class is dark."""
    for name in ("ill", "well"):
        for place in range(count):
            top = highest if place else highest // 4
            ramp = np.linspace(0, top, 64 * 64).round().astype(np.uint16).reshape(64, 64)
            save_image(folder / name / f"{place}.png", ramp)


@pytest.mark.parametrize(
    ("highest", "bits"), [(200, 8), (1000, 10), (4095, 12), (3000, 12), (4096, 14), (65535, 16)]
)
def test_sixteen_bits_are_scaled_by_what_they_hold(tmp_path, caplog, highest, bits):
    x_rays(tmp_path, highest)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}", image_size=64)
    images = np.concatenate([dataset.train.images.numpy(), dataset.test.images.numpy()])
    assert int(images.max()) == highest >> (bits - 8)
    assert len(np.unique(images)) == (highest >> (bits - 8)) + 1  # no grey level is lost that eight bits hold
    assert f"up to {highest:,} are read as {bits} bits" in caplog.text
    tops = sorted({int(image.max()) for image in images})
    assert tops == [(highest // 4) >> (bits - 8), highest >> (bits - 8)]  # dark images stay dark


def test_eight_bits_stay_as_they_are(tmp_path, caplog):
    save_image(tmp_path / "a" / "0.png", np.full((9, 9), 7, np.uint8))
    save_image(tmp_path / "a" / "1.png", np.full((9, 9), 4000, np.uint16))
    images, _, note = decode_all(survey(sorted(tmp_path.glob("a/*"))), 1, 9, "reading")
    assert sorted({int(level) for level in np.unique(images)}) == [7, 4000 >> 4]
    assert "up to 4,000 are read as 12 bits" in note


def damage(folder: Path) -> list[str]:
    """Three files of a folder: cut, no image at all, empty."""
    cut, none, empty = sorted(folder.glob("*/*.png"))[1:6:2]
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    none.write_text("no image")
    empty.write_bytes(b"")
    return [str(file) for file in (cut, none, empty)]


def test_all_damaged_images_of_a_folder_are_named(tmp_path, caplog):
    x_rays(tmp_path)
    names = damage(tmp_path)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}", image_size=16)
    assert len(dataset.train) + len(dataset.test) == 5
    assert "3 of 8 images cannot be read" in caplog.text
    assert all(name in caplog.text for name in names)


def test_a_folder_without_a_sound_image_is_refused(tmp_path):
    x_rays(tmp_path)
    for file in tmp_path.glob("*/*.png"):
        file.write_text("no image")
    with pytest.raises(DataError, match="8 of 8 images are damaged; "):
        load(f"folder:{tmp_path}")


def test_of_very_many_the_first_are_named_and_the_rest_counted(tmp_path):
    for place in range(1000):
        (tmp_path / f"{place:04}.png").write_text("no image")
    looked = survey(sorted(tmp_path.glob("*.png")))
    with pytest.raises(DataError) as told:
        decode_all(looked, 1, 8, "reading")
    text = str(told.value)
    assert text.startswith("1,000 of 1,000 images are damaged")
    assert "0009.png and 990 more. The first: " in text
    assert "cannot be read as an image" in text


def test_a_folders_name_cannot_write_on_the_terminal(monkeypatch):
    """The bar names the folder that is read."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, color_system=None, width=200)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with progress("reading a[red]b\x1b]0;owned\x07\u202ec", 2) as advance:
        advance(1)
    assert "reading a[red]b\\x1b]0;owned\\x07\\u202ec" in text.getvalue()
    assert "\x07" not in text.getvalue()


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 1), ("L", 3)])
def test_arrays_become_grey_or_coloured_as_files_do(tmp_path, mode, channels):
    drawn = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)).convert(mode)
    drawn.save(tmp_path / "a.png")
    array = channels_first(np.asarray(drawn)[None])
    assert np.array_equal(with_channels(array, channels)[0], decode(tmp_path / "a.png", channels))
