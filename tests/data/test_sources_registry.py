from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from source_formats import write_idx

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data import files
from proxyfl.data.sources import SOURCES, find, load
from proxyfl.data.sources.base import channel_statistics, hold_out


def test_the_names():
    assert list(SOURCES) == [
        *("digits", "cifar10", "cifar100", "svhn", "cinic10"),
        *("fashion-mnist", "mnist", "idx", "folder", "npz", "table"),
    ]
    assert all(source.name == name for name, source in SOURCES.items())


@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "flip", "mean", "std"),
    [
        ("cifar10", 50000, 10000, 10, True, (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
        ("cifar100", 50000, 10000, 100, True, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        ("svhn", 73257, 26032, 10, False, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
        ("cinic10", 90000, 90000, 10, True, (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
        ("fashion-mnist", 60000, 10000, 10, True, (0.2860,), (0.3530,)),
        ("mnist", 60000, 10000, 10, False, (0.1307,), (0.3081,)),
    ],
)
def test_facts_of_the_public_sets(name, train, test, classes, flip, mean, std):
    source = SOURCES[name]
    assert (source.full_size, source.full_test, source.flip) == (train, test, flip)
    assert len(set(source.classes)) == classes
    assert source.mean == mean
    assert source.std == std
    assert all(file.url.startswith(("https://", "http://")) and file.checksum for file in source.files)


def test_unknown_names_get_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'cifar11'.*'cifar10'"):
        load("cifar11")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "needs a path: folder:PATH"),
        ("npz:", "needs a path, as in npz:PATH"),
        ("cifar10:/data", "takes no path"),
    ],
)
def test_paths_where_they_belong(name, message):
    with pytest.raises(ConfigError, match=message):
        load(name, "nowhere")


def test_relative_paths_are_sought_under_the_root_then_under_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_idx(tmp_path / "mine", train=5)
    assert len(load("idx:mine", tmp_path / "root").train) == 5
    write_idx(tmp_path / "root" / "mine", train=7)
    assert len(load("idx:mine", tmp_path / "root").train) == 7
    assert find("idx:mine").places(tmp_path / "root") == (tmp_path / "root" / "mine", tmp_path / "mine")


def test_flip_and_image_size_can_be_set(tmp_path):
    write_idx(tmp_path)
    assert load(f"idx:{tmp_path}").flip is False
    dataset = load(f"idx:{tmp_path}", flip=True, image_size=12)
    assert dataset.flip is True
    assert dataset.train.images.shape[-2:] == (12, 12)


def test_images_that_are_not_square_need_a_size(tmp_path):
    arrays = {"x_train": np.zeros((3, 8, 9), np.uint8), "x_test": np.zeros((2, 8, 9), np.uint8)}
    np.savez(tmp_path / "a.npz", **arrays, y_train=np.array([0, 1, 0]), y_test=np.array([0, 1]))
    with pytest.raises(DataError, match=r"8×9; set data\.image_size"):
        load("npz:a.npz", tmp_path)
    assert load("npz:a.npz", tmp_path, image_size=8).train.images.shape == (3, 1, 8, 8)


def test_the_root_comes_from_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "named"))
    assert files.data_root("given") == Path("given")
    assert files.data_root() == tmp_path / "named"
    monkeypatch.delenv("PROXYFL_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert files.data_root() == tmp_path / "cache" / "proxyfl"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert files.data_root() == Path.home() / "Library" / "Caches" / "proxyfl"


def test_channel_statistics_on_literal_numbers():
    images = np.zeros((2, 2, 1, 2), np.uint8)
    images[:, 0] = [[[0, 255]], [[255, 255]]]
    images[:, 1] = 51
    mean, std = channel_statistics(images, chunk=1)
    assert mean == pytest.approx((0.75, 0.2))
    assert std == pytest.approx((0.4330127, 0.001))  # a channel of one colour must not divide by zero


def test_hold_out_takes_the_asked_number_of_each_class():
    labels = np.array([0, 1, 0, 1, 0, 1, 2])
    mask = hold_out(labels, [2, 1, 0])
    assert np.bincount(labels[mask], minlength=3).tolist() == [2, 1, 0]
    assert mask.tolist() == hold_out(labels, [2, 1, 0]).tolist()


def test_checksums_are_judged_by_who_published_them(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    right = "900150983cd24fb0d6963f7d28e17f72"
    published = files.Checksum("md5", right, official=True)
    assert files.judge(file, [published]).word == "official"
    assert (
        files.judge(file, [files.Checksum("md5", "0" * 32), files.Checksum("md5", right)]).word == "customary"
    )
    wrong = files.judge(file, [files.Checksum("md5", "0" * 32)])
    assert wrong.word == "differs"
    assert right in wrong.detail
    assert "0" * 32 in wrong.detail


def test_a_recorded_checksum_is_remembered(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"abc")
    assert files.judge(file).word == "unknown"
    files.record(file)
    assert files.judge(file).word == "recorded"
    file.write_bytes(b"abd")
    assert files.judge(file).word == "differs"
