from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import savemat
from source_formats import load_or_message, pixels

from proxyfl.core.errors import DataError, ProxyFLError
from proxyfl.data.sources import SOURCES, load


def write(folder, train=4, test=2, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    images = pixels(train, 3, 32, 32)
    for name, count in (("train", train), ("test", test)):
        labels = np.array([[10, 1, 9, 10][place % 4] for place in range(count)], np.uint8)[:, None]
        content = {"X": images[:count].transpose(2, 3, 1, 0), "y": labels, **changes}
        savemat(folder / f"{name}_32x32.mat", content, do_compression=True)
    return images


@pytest.mark.parametrize("folder", ["svhn", "SVHN", "."])
def test_label_ten_is_the_digit_zero(tmp_path, folder):
    images = write(tmp_path / folder)
    dataset = load("svhn", tmp_path)
    assert dataset.train.labels.tolist() == [0, 1, 9, 0]
    assert torch.equal(dataset.train.images, torch.from_numpy(images))
    assert dataset.train.images.is_contiguous()
    assert dataset.partial == "4 of 73,257 training images and 2 of 26,032 test images"
    assert SOURCES["svhn"].locate(tmp_path).counts == (4, 2)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"X": np.zeros((3, 32, 32, 4), np.uint8)},
            r"variable X is \(3, 32, 32, 4\), expected \(32, 32, 3, N\)",
        ),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "variable X"),
        ({"X": np.zeros((32, 32, 3, 4), np.float64)}, "variable X is double, expected uint8"),
        ({"X": np.zeros((32, 32, 3, 4), np.int16)}, "variable X is int16, expected uint8"),
        ({"y": np.ones((3, 1), np.uint8)}, r"variable y is \(3, 1\), expected \(4, 1\)"),
        ({"y": np.array([[0], [1], [2], [3]], np.uint8)}, "y from 1 to 10"),
        ({"y": np.array([[11], [1], [2], [3]], np.uint8)}, "y from 1 to 10"),
        ({"y": np.ones((4, 1), np.float64)}, "variable y is double, expected uint8"),
    ],
)
def test_other_shapes_and_types(tmp_path, changes, fault):
    write(tmp_path / "svhn", **changes)
    with pytest.raises(DataError, match=rf"train_32x32\.mat .*{fault}.*proxyfl data fetch svhn"):
        load("svhn", tmp_path)


def test_more_images_than_any_split_has_are_not_read(tmp_path, monkeypatch):
    write(tmp_path / "svhn")
    monkeypatch.setattr("proxyfl.data.sources.svhn.MAX_IMAGES", 3)
    with pytest.raises(DataError, match="variable X"):
        load("svhn", tmp_path)


def test_one_file_alone(tmp_path):
    write(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"train_32x32\.mat .*get it with"):
        load("svhn", tmp_path)


def test_a_damaged_file_is_found_but_not_counted(tmp_path):
    write(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"MATLAB 5.0" + b"x" * 200)
    found = SOURCES["svhn"].locate(tmp_path)
    assert found.present
    assert found.counts is None
    with pytest.raises(DataError, match=r"test_32x32\.mat is damaged"):
        load("svhn", tmp_path)


def test_without_scipy_the_error_names_the_extra(tmp_path, monkeypatch):
    write(tmp_path / "svhn")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ProxyFLError, match=r"scipy.*proxyfl\[data\]"):
        load("svhn", tmp_path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("svhn")
    write(root / "svhn")
    file = root / "svhn" / "train_32x32.mat"
    content = bytearray(file.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    dataset = load_or_message("svhn", root)
    if isinstance(dataset, str):
        assert "train_32x32.mat" in dataset
    else:
        assert dataset.train.images.shape[1:] == (3, 32, 32)
