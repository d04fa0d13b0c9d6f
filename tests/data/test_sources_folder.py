from __future__ import annotations

import logging
import os

import numpy as np
import pytest
import torch
from PIL import Image
from source_formats import pixels, save_image

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data import images as image_files
from proxyfl.data.sources import SOURCES, load


def write(folder, classes=("ant", "bee"), count=10, shape=(40, 30, 3)):
    for number, name in enumerate(classes):
        for place, image in enumerate(pixels(count, *shape, seed=number)):
            save_image(folder / name / f"{place:02}.png", image)


def test_train_and_test_folders(tmp_path):
    write(tmp_path / "train", count=3)
    write(tmp_path / "test", classes=("bee",), count=2)
    dataset = load(f"folder:{tmp_path}")
    assert dataset.train.images.shape == (6, 3, 32, 32)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.test.labels.tolist() == [1, 1]  # bee is 1 though it is the first test folder
    assert dataset.classes == ("ant", "bee")
    assert dataset.flip


def test_a_fifth_is_held_out_and_that_is_said(tmp_path, caplog):
    write(tmp_path, count=10)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}")
    assert torch.bincount(dataset.train.labels).tolist() == [8, 8]
    assert torch.bincount(dataset.test.labels).tolist() == [2, 2]
    assert "4 of 20 images held out" in caplog.text
    again = load(f"folder:{tmp_path}")
    assert torch.equal(dataset.test.images, again.test.images)
    assert SOURCES["folder"].at(str(tmp_path)).locate(tmp_path).counts == (16, 4)


def test_small_classes_give_one_image_and_single_images_stay(tmp_path):
    write(tmp_path, classes=("ant",), count=2)
    write(tmp_path, classes=("bee",), count=1)
    dataset = load(f"folder:{tmp_path}")
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.test.labels.tolist() == [0]


def test_images_of_the_right_size_come_through_unchanged(tmp_path):
    write(tmp_path / "train", count=2, shape=(16, 16, 3))
    write(tmp_path / "test", count=2, shape=(16, 16, 3))
    dataset = load(f"folder:{tmp_path}", image_size=16)
    assert np.array_equal(dataset.train.images[:2].numpy(), pixels(2, 16, 16, 3).transpose(0, 3, 1, 2))


def test_sizes_and_modes_may_differ(tmp_path):
    save_image(tmp_path / "a" / "grey.png", pixels(1, 20, 50)[0])
    save_image(tmp_path / "a" / "alpha.png", pixels(1, 8, 8, 4)[0])
    save_image(tmp_path / "b" / "colour.jpg", np.full((70, 33, 3), (200, 20, 20), np.uint8))
    Image.fromarray(pixels(1, 9, 9)[0]).convert("P").save(tmp_path / "b" / "palette.gif")
    Image.fromarray(pixels(1, 9, 9)[0]).convert("1").save(tmp_path / "b" / "bits.bmp")
    dataset = load(f"folder:{tmp_path}", image_size=12)
    assert dataset.channels == 3
    assert dataset.image_size == 12
    assert len(dataset.train) + len(dataset.test) == 5


def test_grey_stays_grey_when_all_are(tmp_path):
    save_image(tmp_path / "a" / "0.png", np.full((9, 9), 7, np.uint8))
    save_image(tmp_path / "a" / "1.png", np.full((9, 9), 7, np.uint8))
    save_image(tmp_path / "b" / "0.png", np.full((9, 9), 65535, np.uint16))
    save_image(tmp_path / "b" / "1.png", np.full((9, 9), 0x8000, np.uint16))
    dataset = load(f"folder:{tmp_path}", image_size=9)
    assert dataset.channels == 1
    levels = {int(level) for split in (dataset.train, dataset.test) for level in split.images.unique()}
    assert levels == {7, 255, 128}  # sixteen bits are scaled, not cut


def test_photographs_are_turned_upright(tmp_path):
    image = Image.new("RGB", (16, 16))
    image.paste((255, 255, 255), (0, 0, 8, 16))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    for name in ("0.png", "1.png"):
        (tmp_path / "a").mkdir(exist_ok=True)
        image.save(tmp_path / "a" / name, exif=exif)
    dataset = load(f"folder:{tmp_path}", image_size=16)
    assert dataset.train.images[0, 0, :, 12].tolist() == [255] * 16


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_corrupt_image_is_named_and_left_out(tmp_path, content, caplog):
    write(tmp_path)
    file = tmp_path / "bee" / "03.png"
    file.write_bytes(file.read_bytes()[:200] if content is None else content)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}")
    assert len(dataset.train) + len(dataset.test) == 19
    assert "1 of 20 images cannot be read" in caplog.text
    assert "bee/03.png; that is more than 1 %" in caplog.text


@pytest.mark.parametrize("limit", [500, 1000])  # of 1,200 pixels: Pillow's error, Pillow's warning
def test_decompression_bombs_are_errors(tmp_path, monkeypatch, limit):
    write(tmp_path, shape=(40, 30, 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(DataError, match=r"20 of 20 images are damaged.*too many pixels"):
        load(f"folder:{tmp_path}")


def test_links_that_leave_the_folder_are_refused(tmp_path):
    write(tmp_path / "mine")
    save_image(tmp_path / "secret.png", pixels(1, 8, 8, 3)[0])
    link = tmp_path / "mine" / "ant" / "link.png"
    link.symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"link\.png is a link"):
        load("folder:mine", tmp_path)
    link.unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mine" / "cat").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="cat is a link"):
        load("folder:mine", tmp_path)


def test_links_inside_the_folder_and_to_the_folder_are_followed(tmp_path):
    write(tmp_path / "mine")
    (tmp_path / "mine" / "ant" / "again.png").symlink_to(tmp_path / "mine" / "bee" / "00.png")
    (tmp_path / "alias").symlink_to(tmp_path / "mine")
    dataset = load("folder:alias", tmp_path)
    assert len(dataset.train) + len(dataset.test) == 21


def test_folders_below_a_class_belong_to_it_and_other_files_are_ignored_with_a_report(tmp_path, caplog):
    write(tmp_path)
    save_image(tmp_path / "ant" / "deeper" / "0.png", pixels(1, 8, 8, 3)[0])
    (tmp_path / "ant" / "notes.txt").write_text("hello")
    (tmp_path / "readme.md").write_text("hello")
    (tmp_path / "ant" / ".DS_Store").write_text("hello")
    os.mkfifo(tmp_path / "ant" / "pipe.png")  # opening it would wait for ever
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}")
    assert len(dataset.train) + len(dataset.test) == 21
    assert "files ignored because they are not images: 3" in caplog.text


@pytest.mark.parametrize(
    ("folders", "fault"),
    [
        (["test/ant"], r"there are no training images"),
        (["train/ant", "test/ant", "test/bee"], r"class 'bee' has images in the test split"),
        ([], "too few images"),
    ],
)
def test_trees_of_another_form(tmp_path, folders, fault):
    for folder in folders:
        save_image(tmp_path / folder / "0.png", pixels(1, 8, 8, 3)[0])
    with pytest.raises(DataError, match=fault):
        load(f"folder:{tmp_path}")


def test_an_empty_folder_is_no_class_and_named(tmp_path, caplog):
    write(tmp_path)
    (tmp_path / "cat").mkdir()
    assert "cat" not in load(f"folder:{tmp_path}").classes
    assert "not classes: cat" in caplog.text


def test_a_level_above_the_classes_is_not_taken_for_them(tmp_path):
    for folder in ("north/ill", "north/well", "south/ill", "south/well"):
        save_image(tmp_path / folder / "0.png", pixels(1, 8, 8, 3)[0])
    with pytest.raises(DataError, match=r"north, south in .*\(ill, well\): .*client=NAME"):
        load(f"folder:{tmp_path}")


def test_folders_of_patients_below_a_class_belong_to_it(tmp_path):
    for number, kind in enumerate(("ill", "ill", "ill", "well", "well")):
        save_image(tmp_path / kind / f"patient {number}" / "0.png", pixels(1, 8, 8, 3)[0])
    assert load(f"folder:{tmp_path}").classes == ("ill", "well")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("folder:a.npz", "a.npz is not a folder; your own data there is called npz:a.npz"),
        ("npz:mine", "mine is not a .npz file; your own data there is called folder:mine"),
        ("table:mine", "mine is not a file; your own data there is called folder:mine"),
    ],
)
def test_data_of_another_kind_is_called_by_its_name(tmp_path, monkeypatch, given, told):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine")
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(DataError, match=told):
        load(given)


def test_no_folder_there(tmp_path):
    with pytest.raises(DataError, match=r"not found.*gone; .*folder:PATH"):
        load("folder:gone", tmp_path)


def test_sizes_are_checked(tmp_path, monkeypatch):
    write(tmp_path)
    with pytest.raises(ConfigError, match="image_size = 4 is too small"):
        load(f"folder:{tmp_path}", image_size=4)
    monkeypatch.setattr("proxyfl.data.sources.listed.memory_limit", lambda: 100)
    with pytest.raises(DataError, match=r"61\.4 kB; .*data\.image_size"):
        load(f"folder:{tmp_path}")


def test_suffixes_are_read_in_any_case(tmp_path):
    image = Image.fromarray(pixels(1, 8, 8, 3)[0])
    image.save(tmp_path / "A.PNG")
    assert [path.name for path in image_files.list_folder(tmp_path, tmp_path)[1]] == ["A.PNG"]
