"""People's own data in every form: what is labelled, what is not, splits, clients, and every refusal."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from source_formats import pixels, save_image

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.reader.tables import read_table
from proxyfl.data.sources import load


def fill(folder: Path, count: int, level: int = 100) -> None:
    for place in range(count):
        save_image(folder / f"{place:02}.png", np.full((9, 9), level, np.uint8))


def levels(split) -> list[int]:
    return sorted({int(level) for level in split.images.unique()})


@pytest.mark.parametrize("spelling", ["unlabelled", "unlabeled"])
def test_images_without_a_label_train_and_are_no_class_and_in_no_test(tmp_path, spelling, caplog):
    fill(tmp_path / "cat", 10, 10)
    fill(tmp_path / "dog", 5, 20)
    fill(tmp_path / spelling, 30, 30)
    fill(tmp_path / spelling / "deep", 2, 30)
    fill(tmp_path, 3, 40)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}", image_size=9)
    assert dataset.classes == ("cat", "dog")
    assert torch.bincount(dataset.train.labels + 1).tolist() == [35, 8, 4]
    assert torch.bincount(dataset.test.labels).tolist() == [2, 1]
    assert levels(dataset.test) == [10, 20]
    assert not dataset.knows_all
    assert "3 of 15 images held out" in caplog.text
    assert "35 of 47 training images are unlabelled" in caplog.text


def test_splits_are_folders_and_unlabelled_test_images_are_left_out(tmp_path, caplog):
    for split, level in (("train", 10), ("val", 20), ("test", 30)):
        fill(tmp_path / split / "cat", 3, level)
        fill(tmp_path / split / "dog", 2, level)
        fill(tmp_path / split / "unlabelled", 4, level)
    fill(tmp_path / "unlabelled", 1, 10)
    with caplog.at_level(logging.WARNING):
        dataset = load(f"folder:{tmp_path}", image_size=9)
    assert dataset.train.labels.tolist() == [0] * 3 + [1] * 2 + [-1] * 5
    assert dataset.validation is not None
    for split, level in ((dataset.train, 10), (dataset.validation, 20), (dataset.test, 30)):
        assert levels(split) == [level]
    assert dataset.test.labels.tolist() == dataset.validation.labels.tolist() == [0, 0, 0, 1, 1]
    assert "8 test or validation images" in caplog.text
    assert tuple(dataset.resized(16).validation.images.shape) == (5, 1, 16, 16)


def test_a_training_folder_alone_gives_its_test_images(tmp_path):
    fill(tmp_path / "train" / "cat", 10)
    fill(tmp_path / "train" / "dog", 5)
    dataset = load(f"folder:{tmp_path}", image_size=9)
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("cat", "dog"), 12, 3)


def test_a_class_may_be_called_train(tmp_path):
    fill(tmp_path / "train", 5)
    fill(tmp_path / "bus", 5)
    assert load(f"folder:{tmp_path}", image_size=9).classes == ("bus", "train")


def test_clients_are_a_level_of_folders(tmp_path):
    for client, level in (("north", 10), ("south", 20)):
        fill(tmp_path / f"client={client}" / "cat", 5, level)
        fill(tmp_path / f"client={client}" / "unlabelled", 2, level)
    fill(tmp_path / "client=south" / "dog", 10, 20)
    dataset = load(f"folder:{tmp_path}", image_size=9)
    assert dataset.clients == ("north", "south")
    assert dataset.classes == ("cat", "dog")
    assert dataset.holders is not None
    for client, level in enumerate((10, 20)):
        assert dataset.train.images[dataset.holders == client].unique().tolist() == [level]
    kept = dataset.subset(7, torch.Generator().manual_seed(1))
    assert kept.holders is not None
    assert len(kept.holders) == 7
    fill(tmp_path / "cow", 4)
    mixed = load(f"folder:{tmp_path}", image_size=9)
    assert "3 of 23 training images belong to no client" in mixed.notes[-1]
    assert mixed.holders is not None
    assert mixed.holders[mixed.train.labels == mixed.classes.index("cow")].tolist() == [0, 1, 0]


def test_names_of_folders_may_be_written_in_capitals_and_other_usual_words(tmp_path):
    for split in ("Train", "Validation", "TEST"):
        fill(tmp_path / split / "cat", 4)
        fill(tmp_path / split / "Dog", 4)
    fill(tmp_path / "Train" / "Unlabelled", 3)
    dataset = load(f"folder:{tmp_path}", image_size=9)
    assert dataset.classes == ("Dog", "cat")
    assert dataset.validation is not None
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (11, 8, 8)


@pytest.fixture
def tabled(tmp_path) -> Path:
    root = tmp_path / "tabled"
    for place in range(12):
        save_image(root / f"{place}.png", np.full((9, 9), place, np.uint8))
    rows = [
        f"{place}.png,{place % 2},{'ab'[place // 4 % 2]},{'test' if place > 7 else ''}" for place in range(10)
    ]
    (root / "labels.csv").write_text(
        "\n".join(["file,label,client,split", *rows, "10.png,,a,", "11.png,,b,"])
    )
    return root


def test_a_table_beside_the_images_is_honoured(tabled):
    dataset = load(f"folder:{tabled}", image_size=9)
    assert dataset.train.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 10, 11]
    assert dataset.train.labels.tolist() == [0, 1] * 4 + [-1, -1]
    assert dataset.test.images[:, 0, 0, 0].tolist() == [8, 9]
    assert dataset.holders is not None
    assert dataset.holders.tolist() == [0] * 4 + [1] * 4 + [0, 1]
    assert dataset.clients == ("a", "b")


def test_a_table_of_paths_names_its_images_and_no_others(tabled):
    (tabled / "t.csv").write_text("path,diagnosis\n3.png,well\n1.png,ill\n2.png,ill\n4.png,well\n5.png,\n")
    dataset = load(f"table:{tabled / 't.csv'}", image_size=9, keys="file=path,label=diagnosis")
    assert (dataset.classes, len(dataset.train), len(dataset.test)) == (("ill", "well"), 3, 2)
    with pytest.raises(DataError, match=r"'path' .*data\.keys=file=path"):
        load(f"table:{tabled / 't.csv'}")
    with pytest.raises(DataError, match=r"'way'.*path, diagnosis"):
        load(f"table:{tabled / 't.csv'}", keys="file=way")


def test_a_parquet_table_is_the_same(tabled):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(tabled / "labels.csv").to_parquet(tabled / "t.parquet")
    by_csv, by_parquet = (
        load(f"{name}", image_size=9) for name in (f"folder:{tabled}", f"table:{tabled / 't.parquet'}")
    )
    assert torch.equal(by_csv.train.images, by_parquet.train.images)
    assert torch.equal(by_csv.train.labels, by_parquet.train.labels)
    (tabled / "t.parquet").write_bytes(b"PAR1 no parquet")
    with pytest.raises(DataError, match="parquet"):
        load(f"table:{tabled / 't.parquet'}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,label\n../secret.png,a\n", "line 2: '../secret.png' must be a path below"),
        ("file,label\nz.png,a\n", "line 2: there is no image 'z.png'"),
        ("file,label\n1.png,a\n1.png,b\n", "line 3: '1.png' is named twice"),
        ("file,label,split\n1.png,a,tset\n", "line 2: split 'tset' is unknown"),
        ("file,label,label\n1.png,a,b\n", "two columns called 'label'"),
        ("file,label\n1.png\n", "line 2: 1 cells instead of file,label"),
        ("file,label\n1.png,\n", "too few images with a label"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tabled, text, words):
    (tabled / "t.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        load(f"table:{tabled / 't.csv'}")


def test_npz_without_labels_is_unlabelled_and_its_validation_split_is_kept(tmp_path):
    np.savez(
        tmp_path / "m.npz",
        train_images=pixels(6, 8, 8),
        train_labels=np.array([[0], [1], [-1], [1], [0], [-1]]),
        val_images=pixels(3, 8, 8),
        val_labels=np.array([0, 1, -1]),
        test_images=pixels(2, 8, 8),
        test_labels=np.array([1, 0]),
        clients=np.array([3, 3, 10, 10, 3, 10]),
    )
    dataset = load(f"npz:{tmp_path / 'm.npz'}")
    assert dataset.train.labels.tolist() == [0, 1, -1, 1, 0, -1]
    assert dataset.validation is not None
    assert dataset.validation.labels.tolist() == [0, 1]
    assert dataset.clients == ("3", "10")


def test_npz_with_names_of_its_own(tmp_path):
    labels = np.repeat([0, 1, -1], 10)
    np.savez(tmp_path / "m.npz", scans=pixels(30, 8, 8), found=labels, names=np.array(["ill", "well"]))
    dataset = load(f"npz:{tmp_path / 'm.npz'}", keys="images=scans, labels=found, classes=names")
    assert dataset.classes == ("ill", "well")
    assert torch.bincount(dataset.train.labels + 1).tolist() == [10, 8, 8]
    assert torch.bincount(dataset.test.labels).tolist() == [2, 2]
    for keys, words in (
        ("images=scan", "no array 'scan' .images in data.keys.; it holds found, names, scans"),
        ("pictures=scans", "unknown role 'pictures'"),
        ("images", "must be ROLE=NAME"),
    ):
        with pytest.raises((ConfigError, DataError), match=words):
            load(f"npz:{tmp_path / 'm.npz'}", keys=keys)
    with pytest.raises(ConfigError, match="'digits' has neither"):
        load("digits", keys="images=scans")


def test_tables_as_spreadsheets_and_pandas_write_them(tmp_path: Path) -> None:
    """Semicolons with commas in numbers, tabs, nan for a label that is missing."""
    (tmp_path / "a.csv").write_text("dose;label;name\n1,5;well;x,y\n-2,25;;z\n3;nan;z\n", encoding="utf-8")
    table = read_table(tmp_path / "a.csv")
    assert table.columns["dose"] == ["1.5", "-2.25", "3"]
    assert table.texts("label") == ["well", "", ""]
    assert table.columns["name"][0] == "x,y"
    (tmp_path / "b.csv").write_text("file\tlabel\na.png\tv1.0\n", encoding="utf-8")
    table = read_table(tmp_path / "b.csv")
    assert (table.texts("file"), table.texts("label")) == (["a.png"], ["v1.0"])


def test_minus_one_in_a_table_is_a_class_and_that_is_said(tmp_path: Path) -> None:
    rows = "".join(f"{row},{row % 3 - 1}\n" for row in range(30))
    (tmp_path / "a.csv").write_text(f"dose,label\n{rows}", encoding="utf-8")
    found = load("table:a.csv", tmp_path)
    assert found.classes == ("-1", "0", "1")
    assert any("'-1' is read as a class" in note for note in found.notes)
