from __future__ import annotations

import numpy as np
import pytest
import torch
from source_formats import pixels, save_image

from proxyfl.core.errors import DataError
from proxyfl.data.sources import SOURCES, cinic, load


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(cinic, "user_cache", lambda: tmp_path / "user-cache")


def write(folder, count=2):
    for number, name in enumerate(cinic.CLASSES):
        for split in ("train", "valid", "test"):
            for place, image in enumerate(pixels(count, 32, 32, 3, seed=number)):
                save_image(folder / split / name / f"img-{place}.png", image)


@pytest.mark.parametrize("folder", ["cinic-10", "CINIC-10", "."])
def test_reads_train_and_test(tmp_path, folder):
    write(tmp_path / folder)
    dataset = load("cinic10", tmp_path)
    assert dataset.train.images.shape == (20, 3, 32, 32)
    assert dataset.train.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert np.array_equal(dataset.train.images[2:4], pixels(2, 32, 32, 3, seed=1).transpose(0, 3, 1, 2))
    assert dataset.partial == "20 of 90,000 training images and 20 of 90,000 test images"
    assert SOURCES["cinic10"].locate(tmp_path).counts == (20, 20)


def test_grey_pngs_become_colour(tmp_path):
    write(tmp_path)
    save_image(tmp_path / "train" / "airplane" / "img-0.png", np.full((32, 32), 9, np.uint8))
    assert torch.equal(
        load("cinic10", tmp_path).train.images[0], torch.full((3, 32, 32), 9, dtype=torch.uint8)
    )


def test_images_are_decoded_once_and_then_mapped(tmp_path, monkeypatch):
    write(tmp_path)
    first = load("cinic10", tmp_path)
    monkeypatch.setattr(cinic, "decode", None)
    second = load("cinic10", tmp_path)
    assert torch.equal(first.train.images, second.train.images)
    caches = list((tmp_path / cinic.CACHE).iterdir())
    assert len(caches) == 1
    assert sorted(file.name for file in caches[0].iterdir()) == ["test.npy", "train.npy"]


def test_writing_into_the_mapped_images_leaves_the_cache_alone(tmp_path):
    write(tmp_path)
    dataset = load("cinic10", tmp_path)
    before = dataset.train.images.clone()
    dataset.train.images.zero_()
    assert torch.equal(load("cinic10", tmp_path).train.images, before)


def test_a_changed_folder_is_read_again_and_the_old_cache_dropped(tmp_path):
    write(tmp_path)
    load("cinic10", tmp_path)
    save_image(tmp_path / "train" / "cat" / "new.png", np.full((32, 32, 3), 200, np.uint8))
    dataset = load("cinic10", tmp_path)
    assert len(dataset.train) == 21
    save_image(tmp_path / "train" / "cat" / "new.png", np.full((32, 32, 3), 100, np.uint8))
    assert load("cinic10", tmp_path).train.images[8].unique().tolist() == [100]
    assert len(list((tmp_path / cinic.CACHE).iterdir())) == 1


@pytest.mark.parametrize("length", [None, 0, 5000])
def test_a_damaged_cache_is_made_anew(tmp_path, length):
    write(tmp_path)
    before = load("cinic10", tmp_path).train.images.clone()
    file = next((tmp_path / cinic.CACHE).glob("*/train.npy"))
    content = file.read_bytes()
    file.unlink()
    if length is not None:
        file.write_bytes(content[:length])
    assert torch.equal(load("cinic10", tmp_path).train.images, before)


def test_where_the_folder_cannot_be_written_the_users_cache_serves(tmp_path):
    write(tmp_path / "cinic-10")
    (tmp_path / "cinic-10" / cinic.CACHE).write_text("in the way")  # stops root as well, unlike permissions
    dataset = load("cinic10", tmp_path)
    assert len(dataset.train) == 20
    assert len(list((tmp_path / "user-cache").glob("cinic10/*/*/train.npy"))) == 1


def test_where_nothing_can_be_written_the_error_says_where(tmp_path):
    write(tmp_path / "cinic-10")
    (tmp_path / "cinic-10" / cinic.CACHE).write_text("in the way")
    (tmp_path / "user-cache").write_text("in the way")
    with pytest.raises(DataError, match=r"cinic-10.* or .*user-cache"):
        load("cinic10", tmp_path)


def test_an_interrupted_caching_leaves_no_cache(tmp_path, monkeypatch):
    write(tmp_path)
    original, calls = cinic.decode, []

    def breaking(file, channels):
        calls.append(file)
        if len(calls) == 25:
            raise KeyboardInterrupt
        return original(file, channels)

    monkeypatch.setattr(cinic, "decode", breaking)
    with pytest.raises(KeyboardInterrupt):
        load("cinic10", tmp_path)
    assert list((tmp_path / cinic.CACHE).iterdir()) == []


def test_a_full_disk_is_an_error_with_a_cure(tmp_path, monkeypatch):
    write(tmp_path)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cinic, "write_images", full)
    with pytest.raises(DataError, match=r"No space left on device.*make room"):
        load("cinic10", tmp_path)
    assert list((tmp_path / cinic.CACHE).iterdir()) == []


def test_other_sizes_and_corrupt_files_are_named(tmp_path):
    write(tmp_path)
    file = tmp_path / "test" / "dog" / "img-1.png"
    save_image(file, pixels(1, 31, 32, 3)[0])
    with pytest.raises(DataError, match=r"dog/img-1\.png is 32×31, expected 32×32"):
        load("cinic10", tmp_path)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"dog/img-1\.png cannot be read"):
        load("cinic10", tmp_path)


def test_missing_and_empty(tmp_path):
    with pytest.raises(
        DataError, match=r"train/CLASS and test/CLASS .*not found.*proxyfl data fetch cinic10"
    ):
        load("cinic10", tmp_path)
    (tmp_path / "CINIC-10.tar.gz").write_bytes(b"x")
    with pytest.raises(DataError, match=r"CINIC-10\.tar\.gz .*not unpacked"):
        load("cinic10", tmp_path)
    for split in ("train", "test"):
        (tmp_path / split / "airplane").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no images in .*train"):
        load("cinic10", tmp_path)
