from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch
from source_formats import pixels

from proxyfl.core.errors import DataError
from proxyfl.data.reader import arrays as reader
from proxyfl.data.reader.known import Form, read_known
from proxyfl.data.sources import SOURCES, load


def arrays(naming=0, **changes):
    content = dict(
        zip(
            (name for split in ("train", "test") for name in reader.NAMINGS[naming][split]),
            (pixels(5, 8, 8), np.array([0, 1, 2, 3, 0]), pixels(2, 8, 8, seed=1), np.array([1, 0])),
            strict=True,
        )
    )
    return content | changes


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_grey_images(tmp_path, save):
    content = arrays()
    save(tmp_path / "a.npz", **content)
    dataset = load("npz:a.npz", tmp_path)
    assert torch.equal(dataset.train.images[:, 0], torch.from_numpy(content["x_train"]))
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 0]
    assert dataset.classes == ("0", "1", "2", "3")
    assert not dataset.flip
    assert SOURCES["npz"].at("a.npz").locate(tmp_path).counts == (5, 2)


def test_medmnists_names_and_colour_and_column_labels(tmp_path):
    images = pixels(5, 28, 28, 3)
    content = arrays(1, train_images=images, test_images=images[:2])
    content["train_labels"] = content["train_labels"][:, None].astype(np.uint8)
    content["test_labels"] = content["test_labels"][:, None].astype(np.uint8)
    np.savez_compressed(
        tmp_path / "m.npz", **content, val_images=images, val_labels=np.zeros((5, 1), np.uint8)
    )
    dataset = load(f"npz:{tmp_path / 'm.npz'}")
    assert torch.equal(dataset.train.images, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 0]
    assert len(dataset.mean) == 3


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"x_train": pixels(5, 8, 8).astype(str)}, "x_train is <U3, expected numbers"),
        ({"x_train": pixels(5, 8, 8) - 100.0}, "from -.* before they are normalised"),
        ({"x_train": np.full((5, 8, 8), np.nan)}, "from nan"),
        ({"x_train": pixels(5, 8, 8, 4)}, "x_train has shape"),
        ({"x_train": pixels(5, 0)}, "x_train has shape"),
        ({"x_train": pixels(0, 8, 8)}, "x_train has shape"),
        ({"y_train": np.zeros((5, 3), int)}, "y_train has 3 labels for each image"),
        ({"y_train": np.full(5, 0.5)}, "y_train holds 0.5; give whole numbers"),
        ({"y_train": np.array(3)}, "y_train has shape"),
        ({"y_train": np.array(["a"] * 5, object)}, "pickled"),
        ({"extra": np.array([None])}, "pickled"),
    ],
)
def test_other_contents(tmp_path, changes, fault):
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(DataError, match=f"a.npz.*{fault}"):
        load("npz:a.npz", tmp_path)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"y_train": np.zeros(4, int)}, "5 images in x_train but 4 labels"),
        ({"y_train": np.array([0, 1, 2, 3, -2])}, "a train label is -2"),
        ({"y_train": np.full(5, -1)}, "no train image has a label"),
        ({"y_train": np.array([0, 1, 2, 3, 2**40])}, "a label is 1099511627776; at most 65,536 classes"),
        ({"x_test": pixels(2, 8, 9)}, "differ in shape"),
    ],
)
def test_arrays_that_do_not_fit_each_other(tmp_path, changes, fault):
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(DataError, match=fault):
        load("npz:a.npz", tmp_path)


def test_missing_arrays_and_files(tmp_path):
    np.savez(tmp_path / "a.npz", pixels=pixels(2, 8, 8), diagnosis=np.zeros(2, int))
    with pytest.raises(DataError, match=r"diagnosis, pixels, .*images and labels.*data.keys"):
        load("npz:a.npz", tmp_path)
    np.savez(tmp_path / "a.npz", x_train=pixels(2, 8, 8))
    with pytest.raises(DataError, match="too few images with a label"):
        load("npz:a.npz", tmp_path)
    with pytest.raises(DataError, match=r"not found.*b\.npz"):
        load("npz:b.npz", tmp_path)


def header(shape, dtype="|u1"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("shape", [(10**6, 10**6), (10**12,), (7,)])
def test_a_header_that_promises_more_than_there_is(tmp_path, shape):
    np.savez(tmp_path / "a.npz", **{name: value for name, value in arrays().items() if name != "x_train"})
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("x_train.npy", header(shape) + b"abc")
    with pytest.raises(DataError, match=r"x_train\.npy .*header"):
        load("npz:a.npz", tmp_path)


def test_what_memory_cannot_hold_is_refused_before_it_is_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", **arrays())
    monkeypatch.setattr(reader, "memory_limit", lambda: 100)
    with pytest.raises(DataError, match="too much for this machine's memory"):
        load("npz:a.npz", tmp_path)


@pytest.mark.parametrize("part", [0, 1, 40, 200])
def test_truncated_files(tmp_path, part):
    np.savez(tmp_path / "a.npz", **arrays())
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:part])
    assert SOURCES["npz"].at("a.npz").locate(tmp_path).counts is None
    with pytest.raises(DataError, match=r"a\.npz is damaged"):
        load("npz:a.npz", tmp_path)


def test_flipped_bytes_are_noticed(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    content = bytearray((tmp_path / "a.npz").read_bytes())
    place = content.index(arrays()["x_train"].tobytes())
    content[place] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz is damaged: .*CRC"):
        load("npz:a.npz", tmp_path)


def test_labels_as_people_have_them(tmp_path):
    """Whole numbers as floats with nan for none, and names, empty for none."""
    np.savez(tmp_path / "a.npz", **arrays(y_train=np.array([0, 1, np.nan, 2, 0]), y_test=np.array([1.0, 0])))
    dataset = load("npz:a.npz", tmp_path)
    assert dataset.train.labels.tolist() == [0, 1, -1, 2, 0]
    assert dataset.classes == ("0", "1", "2")
    named = arrays(y_train=np.array(["ill", "well", "", "ill", "well"]), y_test=np.array(["well", "ill"]))
    np.savez(tmp_path / "b.npz", **named)
    dataset = load("npz:b.npz", tmp_path)
    assert dataset.classes == ("ill", "well")
    assert dataset.train.labels.tolist() == [0, 1, -1, 0, 1]
    assert dataset.test.labels.tolist() == [1, 0]
    np.savez(tmp_path / "c.npz", **named, classes=np.array(["well", "sick"]))
    with pytest.raises(DataError, match=r"y_train: 'ill' .*classes"):
        load("npz:c.npz", tmp_path)


def test_numbers_that_no_image_has_are_no_classes(tmp_path):
    """People count from 1, too; another file's numbers then mean the same."""
    np.savez(tmp_path / "a.npz", **arrays(y_train=np.array([1, 2, -1, 5, 1]), y_test=np.array([5, 2])))
    dataset = load("npz:a.npz", tmp_path)
    assert dataset.classes == ("1", "2", "5")
    assert dataset.train.labels.tolist() == [0, 1, -1, 2, 0]
    assert dataset.test.labels.tolist() == [2, 1]
    for by_name in (True, False):  # for `eval --data`, and at a site
        known = read_known(tmp_path / "a.npz", Form(dataset.classes, 1, 8), by_name=by_name)
        assert known.data.labels.tolist() == [0, 1, -1, 2, 0, 2, 1]
    np.savez(tmp_path / "b.npz", **arrays(y_train=np.array([0, 1, 2, 5, 1]), y_test=np.array([5, 2])))
    with pytest.raises(DataError, match="class '0' is not in the class list"):
        read_known(tmp_path / "b.npz", Form(dataset.classes, 1, 8))


def test_images_with_channels_first_and_of_sixteen_bits(tmp_path, caplog):
    colour = pixels(5, 3, 8, 8)
    np.savez(tmp_path / "a.npz", **arrays(x_train=colour, x_test=colour[:2]))
    assert torch.equal(load("npz:a.npz", tmp_path).train.images, torch.from_numpy(colour))
    deep = np.full((5, 8, 8), 1600, np.uint16)
    deep[0, 0, 0] = 4095
    np.savez(tmp_path / "b.npz", **arrays(x_train=deep, x_test=deep[1:3]))
    dataset = load("npz:b.npz", tmp_path)
    assert dataset.train.images[0, 0, 0, :2].tolist() == [255, 100]
    assert dataset.test.images[0, 0, 0, 0] == 100
    (said,) = caplog.messages
    assert "up to 4,095 are read as 12 bits" in said


@pytest.mark.parametrize(
    ("kind", "top", "told"),
    [(np.float32, 1, "1"), (np.float64, 255, "255"), (np.int64, 255, "255"), (np.float16, 255, "255")],
)
def test_images_of_other_numbers(tmp_path, caplog, kind, top, told):
    grey = pixels(5, 8, 8)
    given = (grey * (top / 255)).astype(kind)
    np.savez(tmp_path / "a.npz", **arrays(x_train=given, x_test=(given[:2] / 2).astype(kind)))
    dataset = load("npz:a.npz", tmp_path)
    assert torch.equal(dataset.train.images[:, 0], torch.from_numpy(grey))
    (said,) = caplog.messages
    assert f"{np.dtype(kind)} are read as grey levels from 0 to {told}" in said


def test_black_and_white(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays(x_train=pixels(5, 8, 8) > 99, x_test=pixels(2, 8, 8) > 99))
    assert load("npz:a.npz", tmp_path).train.images.unique().tolist() == [0, 255]


def test_one_array_alone_and_objects_are_not_called_damaged(tmp_path):
    np.save(tmp_path / "a.npy", pixels(5, 8, 8))
    with pytest.raises(DataError, match=r"a.npy .*np.savez"):
        load("npz:a.npy", tmp_path)
    np.savez(tmp_path / "b.npz", **arrays(y_train=np.array(["a"] * 5, object)))
    with pytest.raises(DataError, match=r"b.npz: y_train.npy is pickled.*\.astype"):
        load("npz:b.npz", tmp_path)


def test_all_that_is_wrong_is_told_at_once(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays(x_train=pixels(5, 8, 8).astype(str), y_test=np.eye(2)))
    with pytest.raises(DataError) as caught:
        load("npz:a.npz", tmp_path)
    told = str(caught.value)
    assert "2 problems: (1)" in told
    assert "x_train is <U3, expected numbers: uint8 from 0 to 255" in told
    assert "y_test has 2 labels for each image" in told
