from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from source_formats import (
    BATCHES,
    binary_records,
    load_or_message,
    pixels,
    python2_pickle,
    write_cifar10_binary,
)

from proxyfl.core.errors import DataError
from proxyfl.data.sources import SOURCES, load


def write_python(root, count=2, protocol=None, names=BATCHES, labels=(3, 9)):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    images = pixels(count, 3072)
    for name in (*names, "test_batch"):
        if protocol is None:
            content = python2_pickle(images, list(labels))
        else:
            batch = {b"data": images, b"labels": list(labels), b"filenames": [b"a.png", b"b.png"]}
            content = pickle.dumps(batch, protocol)
        (folder / name).write_bytes(content)
    return images


def test_binary_version(tmp_path):
    images = write_cifar10_binary(tmp_path)
    dataset = load("cifar10", tmp_path)
    assert torch.equal(dataset.train.images, torch.from_numpy(images))
    assert dataset.train.labels[:6].tolist() == [0, 1, 2, 1, 2, 3]
    assert dataset.test.labels.tolist() == [5, 6, 7]
    assert dataset.partial == "15 of 50,000 training images and 3 of 10,000 test images"
    assert dataset.full_size == 50000
    assert dataset.train.images.is_contiguous()
    assert SOURCES["cifar10"].locate(tmp_path).counts == (15, 3)


def test_the_root_may_be_the_folder_itself(tmp_path):
    write_cifar10_binary(tmp_path)
    assert len(load("cifar10", tmp_path / "cifar-10-batches-bin").train) == 15


def test_cifar100_binary_uses_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    images = pixels(4, 3, 32, 32)
    (folder / "train.bin").write_bytes(binary_records(images, [0, 99, 41, 41], coarse=True))
    (folder / "test.bin").write_bytes(binary_records(images[:1], [5], coarse=True))
    dataset = load("cifar100", tmp_path)
    assert dataset.train.labels.tolist() == [0, 99, 41, 41]
    assert dataset.classes[41] == "lawn_mower"
    assert dataset.classes[0] == "apple"
    assert dataset.classes[99] == "worm"
    assert torch.equal(dataset.train.images, torch.from_numpy(images))


@pytest.mark.parametrize("protocol", [None, 2, 3, 4])
def test_python_version(tmp_path, protocol):
    images = write_python(tmp_path, protocol=protocol)
    dataset = load("cifar10", tmp_path)
    assert torch.equal(dataset.train.images[:2].reshape(2, -1), torch.from_numpy(images))
    assert dataset.train.labels.tolist() == [3, 9] * 5
    assert len(dataset.test) == 2


def test_cifar100_python(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    images = pixels(2, 3072)
    for name in ("train", "test"):
        (folder / name).write_bytes(python2_pickle(images, [98, 1], b"fine_labels"))
    assert load("cifar100", tmp_path).train.labels.tolist() == [98, 1]


def test_python_and_binary_read_the_same_images(tmp_path):
    images = write_python(tmp_path / "py", protocol=2)
    folder = tmp_path / "bin" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in (*BATCHES, "test_batch"):
        (folder / f"{name}.bin").write_bytes(binary_records(images, [3, 9]))
    first, second = load("cifar10", tmp_path / "py"), load("cifar10", tmp_path / "bin")
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.train.labels, second.train.labels)


def test_missing_training_batches_are_reported_as_partial(tmp_path):
    write_cifar10_binary(tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    dataset = load("cifar10", tmp_path)
    assert len(dataset.train) == 12
    assert dataset.partial.startswith("12 of 50,000 training images")
    assert "without data_batch_3.bin" in dataset.partial


def test_a_complete_version_is_preferred_to_an_incomplete_one(tmp_path):
    write_cifar10_binary(tmp_path)
    write_python(tmp_path)
    assert len(load("cifar10", tmp_path).train) == 15
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    assert len(load("cifar10", tmp_path).train) == 10


def test_a_missing_test_batch_is_an_error_that_names_the_file(tmp_path):
    write_cifar10_binary(tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"test_batch\.bin.*not found.*proxyfl data fetch cifar10"):
        load("cifar10", tmp_path)


def test_nothing_there(tmp_path):
    with pytest.raises(DataError) as caught:
        load("cifar10", tmp_path)
    message = str(caught.value)
    assert "cifar-10-batches-bin" in message
    assert "cifar-10-batches-py" in message
    assert f"proxyfl data fetch cifar10 --data-root {tmp_path}" in message
    assert "\n" not in message


@pytest.mark.parametrize("archive", ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"])
def test_an_archive_that_was_not_unpacked_is_noticed(tmp_path, archive):
    (tmp_path / archive).write_bytes(b"x")
    with pytest.raises(DataError, match=f"{archive} .*not unpacked.*proxyfl data fetch cifar10"):
        load("cifar10", tmp_path)


def test_truncated_records(tmp_path):
    write_cifar10_binary(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"data_batch_2\.bin is damaged: 9,218 bytes, .* records of 3,073"):
        load("cifar10", tmp_path)


def test_an_empty_file_and_a_label_out_of_range(tmp_path):
    write_cifar10_binary(tmp_path)
    file = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = file.read_bytes()
    file.write_bytes(b"\x0a" + content[1:])
    with pytest.raises(DataError, match=r"data_batch_2\.bin .*label is 10, .*0 to 9"):
        load("cifar10", tmp_path)
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"data_batch_2\.bin is damaged: 0 bytes"):
        load("cifar10", tmp_path)


def test_a_file_longer_than_the_full_set_is_not_read(tmp_path, monkeypatch):
    write_cifar10_binary(tmp_path)
    monkeypatch.setattr("proxyfl.data.sources.cifar.MAX_IMAGES", 2)
    with pytest.raises(DataError, match=r"3 images, .*2"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("batch", "fault"),
    [
        ({b"labels": [1]}, "'data' is not an array"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}, "'data' is not an array"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, "'labels' is not a list"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1.5]}, "'labels' is not a list"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1, 2]}, "1 images but 2 labels"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}, "a label is 10"),
        ({b"data": np.zeros((1, 3072), np.float64), b"labels": [1]}, "an array that is not uint8"),
    ],
)
def test_batches_of_another_form(tmp_path, batch, fault):
    write_python(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(DataError, match=f"data_batch_1 is damaged: .*{fault}"):
        load("cifar10", tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    cut=st.integers(0, 9219), flips=st.lists(st.tuples(st.integers(0, 9218), st.integers(1, 255)), max_size=4)
)
def test_damaged_binary_files_are_refused_or_read(tmp_path_factory, cut, flips):
    root = tmp_path_factory.mktemp("cifar")
    write_cifar10_binary(root)
    file = root / "cifar-10-batches-bin" / "data_batch_1.bin"
    content = bytearray(file.read_bytes())
    for place, change in flips:
        content[place] ^= change
    file.write_bytes(content[:cut])
    refused_or_valid(root)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_python_files_are_refused_or_read(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("cifar")
    write_python(root, names=BATCHES[:1])
    file = root / "cifar-10-batches-py" / "data_batch_1"
    content = bytearray(file.read_bytes())
    structure = [*range(250), *range(len(content) - 80, len(content))]  # the pixels between cannot break it
    for place in data.draw(st.lists(st.sampled_from(structure), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.sampled_from([*structure, len(content)]))])
    refused_or_valid(root)


def refused_or_valid(root):
    dataset = load_or_message("cifar10", root)
    if isinstance(dataset, str):
        assert "data_batch_1" in dataset
        return
    assert dataset.train.images.shape[1:] == (3, 32, 32)
    assert len(dataset.train.images) == len(dataset.train.labels)
    assert 0 <= dataset.train.labels.min() <= dataset.train.labels.max() <= 9
