from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from source_formats import idx_bytes, load_or_message, pixels, write_idx

from proxyfl.core.errors import DataError
from proxyfl.data.sources import SOURCES, idx, load
from proxyfl.data.sources.base import channel_statistics


@pytest.mark.parametrize("zipped", [True, False])
def test_reads_the_four_files(tmp_path, zipped):
    images = write_idx(tmp_path / "mine", zipped=zipped)
    dataset = load("idx:mine", tmp_path)
    assert torch.equal(dataset.train.images[:, 0], torch.from_numpy(images))
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert dataset.test.labels.tolist() == [2, 3, 4, 5, 6, 7]
    assert dataset.classes == tuple("0123456789")
    assert dataset.mean == pytest.approx(channel_statistics(images[:, None])[0])
    assert dataset.full_size == 12
    assert dataset.partial == ""
    assert SOURCES["idx"].at("mine").locate(tmp_path).counts == (12, 6)


def test_names_with_a_dot_are_read_too(tmp_path):
    write_idx(tmp_path, zipped=False)
    for file in list(tmp_path.iterdir()):
        file.rename(file.with_name(file.name.replace("-idx", ".idx")))
    assert len(load(f"idx:{tmp_path}").train) == 12


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("idx", "idx"),
        ("idx", "."),
    ],
)
def test_the_usual_places(tmp_path, name, folder):
    write_idx(tmp_path / folder)
    dataset = load(name, tmp_path)
    assert len(dataset.train) == 12
    assert (dataset.partial != "") == (name != "idx")


def test_debians_place_is_sought_last(tmp_path, monkeypatch):
    assert str(idx.DEBIAN) == "/usr/share/datasets/fashion-mnist"
    assert SOURCES["fashion-mnist"].locate(tmp_path).looked[-1] == idx.DEBIAN
    assert SOURCES["idx"].locate(tmp_path).looked[-1] == idx.DEBIAN


def test_fashion_has_its_names_and_says_what_is_missing(tmp_path):
    write_idx(tmp_path / "fashion-mnist")
    dataset = load("fashion-mnist", tmp_path)
    assert dataset.classes[9] == "ankle boot"
    assert dataset.partial == "12 of 60,000 training images and 6 of 10,000 test images"


def test_a_missing_file_is_named(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"mnist .*t10k-labels-idx1-ubyte; .*proxyfl data fetch mnist"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "does not start like an idx file"),
        (b"\x01\x00\x08\x03", "does not start like an idx file"),
        (b"\x00\x00\x0d\x03", "data type 13"),
        (b"\x00\x00\x08\x00", "0 dimensions"),
        (b"\x00\x00\x08\x03\x00\x00", "ends inside its header"),
        (idx_bytes(pixels(3, 8)), "expected 3 dimensions"),
        (idx_bytes(pixels(0, 8, 8)), "none empty"),
        (idx_bytes(pixels(3, 8, 8))[:-1], "192 bytes, there are only 191"),
        (idx_bytes(pixels(3, 8, 8)) + b"x", "192 bytes, there are at least 193"),
        (idx_bytes(pixels(3, 8, 8)), "12 labels for 3 images"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1), "more than"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_damage(tmp_path, content, fault, zipped):
    write_idx(tmp_path, zipped=zipped)
    file = tmp_path / f"train-images-idx3-ubyte{'.gz' if zipped else ''}"
    file.write_bytes(gzip.compress(content) if zipped else content)
    if not zipped and fault.startswith("promises 192 bytes, there are only"):
        fault = "promises"
    with pytest.raises(DataError, match=f"is damaged: .*{fault}"):
        load(f"idx:{tmp_path}")


def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path, monkeypatch):
    write_idx(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.zeros((12, 8, 8), np.uint8)) + bytes(50_000_000)))
    taken = 0
    original = gzip.GzipFile.read

    def counting(self, size=-1):
        nonlocal taken
        piece = original(self, size)
        taken += len(piece)
        return piece

    monkeypatch.setattr(gzip.GzipFile, "read", counting)
    with pytest.raises(DataError, match="at least 769"):
        load(f"idx:{tmp_path}")
    assert taken < 10_000


def test_what_memory_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    write_idx(tmp_path)
    monkeypatch.setattr(idx, "memory_limit", lambda: 100)
    with pytest.raises(DataError, match="too much for this machine's memory"):
        load(f"idx:{tmp_path}")


@settings(max_examples=150, deadline=None)
@given(data=st.data(), zipped=st.booleans())
def test_damaged_files_are_refused_or_read(tmp_path_factory, data, zipped):
    folder = tmp_path_factory.mktemp("idx")
    write_idx(folder, train=3, test=2, zipped=zipped)
    file = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(file.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    dataset = load_or_message(f"idx:{folder}", folder, image_size=8)
    if isinstance(dataset, str):
        assert "idx" in dataset
        return
    assert dataset.train.images.shape[1:] == (1, 8, 8)
    assert len(dataset.train.labels) == len(dataset.train.images)
    assert dataset.train.labels.max() < len(dataset.classes)
