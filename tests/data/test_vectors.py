"""Vectors as people have them: in arrays, npz files and tables; standardisation, views and every refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.views import VectorSettings
from proxyfl.data.dataset import Dataset
from proxyfl.data.given import read_given
from proxyfl.data.look import look
from proxyfl.data.numbers import numbers, statistics
from proxyfl.data.reader.known import Form, read_known
from proxyfl.data.sources import load
from proxyfl.data.stream import VIEWS, ClientData, Stream, ViewSettings
from proxyfl.data.vectors import standardise, strong, weak
from proxyfl.deploy.site_data import open_site, write_npz

STILL = VectorSettings(noise=0, strong_noise=0, dropout=0, mix=0)
TABLE = "id,age,dose,lab_a,lab_b,name,diagnosis\n" + "".join(
    f"{row},{20 + row},{row % 3},{row / 4},7,p{row}.txt,{('ill', 'well', '')[row % 3]}\n" for row in range(30)
)
KEYS = "label=diagnosis,without=id"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "patients.csv").write_text(TABLE, encoding="utf-8")
    return tmp_path / "patients.csv"


def test_features_are_standardised_and_a_constant_one_becomes_zero():
    vectors = np.array([[1.0, 1e9, 5.0], [3.0, 3e9, 5.0]], np.float32)
    mean, std = statistics(vectors)
    assert (mean, std) == ((2.0, 2e9, 5.0), (1.0, 1e9, 1.0))
    assert standardise(torch.from_numpy(vectors), mean, std).tolist() == [[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]
    shaky = np.full((7, 1), 0.1, np.float32)
    assert statistics(shaky)[1] == (1.0,)
    with pytest.raises(DataError, match=r"3 features .*1 and 3"):
        standardise(torch.from_numpy(vectors), mean[:1], std)


@pytest.mark.parametrize(
    ("value", "told"), [(np.nan, "nan"), (np.inf, "inf"), (1e300, r"1e\+300")], ids=["nan", "inf", "huge"]
)
def test_what_is_no_finite_number_is_named_with_row_and_column(value, told):
    array = np.zeros((4, 3))
    array[2, 1] = value
    with pytest.raises(DataError, match=f"scans: row 2, column 1 is {told}, .*fill"):
        numbers(array, "scans")
    with pytest.raises(DataError, match="line 30, column 'dose'"):
        numbers(array, "scans", ["age", "dose", "lab"], [10, 20, 30, 40])
    with pytest.raises(DataError, match=r"training vectors: row 2.*fill in a value"):
        Dataset.of(array, [0, 1, 0, 1], test=(np.zeros((1, 3)), [0]))


def test_views_without_noise_dropout_and_mixing_are_the_vectors():
    vectors, generator = torch.randn(5, 4), torch.Generator().manual_seed(0)
    assert torch.equal(weak(vectors, generator, STILL), vectors)
    assert torch.equal(strong(vectors, generator, STILL), vectors)


def test_strong_views_exchange_drop_and_add_noise():
    vectors = torch.arange(200.0)[:, None].expand(200, 50).contiguous() + 1

    def view(**changed: float) -> torch.Tensor:
        settings = VectorSettings(**{"noise": 0, "strong_noise": 0, "dropout": 0, "mix": 0, **changed})
        return strong(vectors, torch.Generator().manual_seed(1), settings)

    mixed = view(mix=1)
    assert torch.equal(mixed, mixed[:, :1].expand(-1, 50))
    assert mixed[:, 0].sort().values.tolist() == vectors[:, 0].tolist()
    assert not torch.equal(mixed, vectors)
    assert (view(mix=0.2) != vectors).float().mean().item() == pytest.approx(0.2, abs=0.02)
    assert (view(dropout=0.3) == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    assert (view(strong_noise=0.5) - vectors).std().item() == pytest.approx(0.5, abs=0.02)
    noisy = weak(vectors, torch.Generator().manual_seed(1), VectorSettings(noise=0.1))
    assert (noisy - vectors).std().item() == pytest.approx(0.1, abs=0.01)


def test_how_much_is_drawn_depends_on_the_shape_alone():
    ends = []
    for settings, scale in ((STILL, 1.0), (VectorSettings(), 9.0)):
        generator = torch.Generator().manual_seed(2)
        strong(torch.ones(6, 3) * scale, generator, settings)
        weak(torch.ones(6, 3) * scale, generator, settings)
        ends.append(generator.get_state())
    assert torch.equal(*ends)


def test_a_stream_hands_out_standardised_views():
    vectors = torch.tensor([[10.0, 0.0], [30.0, 4.0], [10.0, 4.0], [30.0, 0.0]])
    held = ClientData(vectors, torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([2, 3]))
    views = ViewSettings(False, (20.0, 2.0), (10.0, 2.0), STILL)
    settings = TrainSettings(batch=2, mu=1, pool="unlabelled")
    stream = Stream(held, settings, views, VIEWS, torch.Generator().manual_seed(0), torch.device("cpu"))
    batch = next(stream.epoch())
    assert batch.x.shape == batch.u_strong.shape == (2, 2)
    assert {tuple(row) for row in batch.u_weak.tolist()} == {(-1.0, 1.0), (1.0, -1.0)}
    assert torch.equal(batch.x, torch.where(batch.y[:, None] == 0, -1.0, 1.0).expand(2, 2))


class Rows(TorchDataset):
    """Every third vector has no label."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int | None]:
        return torch.tensor([place, 2.0 * place, 1.0]), None if place % 3 == 2 else place % 3


def test_vectors_in_memory_become_a_data_set():
    data = Dataset.of(Rows(), test=(np.arange(6).reshape(2, 3), [0, 1]))
    assert (data.channels, data.image_size, data.is_vectors) == (3, 0, True)
    assert (data.train.images.dtype, tuple(data.train.images.shape)) == (torch.float32, (12, 3))
    assert data.train.labels.tolist() == [0, 1, -1] * 4
    assert (data.mean, data.std[2]) == ((5.5, 11.0, 1.0), 1.0)
    with pytest.raises(ConfigError, match=r"data\.image_size = 16 .*'mine' holds vectors"):
        data.resized(16)
    with pytest.raises(DataError, match=r"shape: \(3,\) and \(2,\)"):
        Dataset.of(Rows(), test=(np.zeros((2, 2)), [0, 1]))


@pytest.mark.parametrize("names", [("vectors", "labels"), ("X", "y"), ("images", "labels")])
def test_vectors_in_an_npz_file(tmp_path, names):
    labels = np.arange(40) % 4 - 1
    np.savez(tmp_path / "a.npz", **{names[0]: np.arange(120).reshape(40, 3), names[1]: labels})
    data = load(f"npz:{tmp_path / 'a.npz'}")
    assert (len(data.train), len(data.test), data.channels) == (34, 6, 3)
    assert int((data.train.labels < 0).sum()) == 10
    assert bool((data.test.labels >= 0).all())
    assert data.mean == pytest.approx(data.train.images.double().mean(0).tolist())
    np.savez(tmp_path / "b.npz", **{names[0]: np.full((40, 3), np.nan), names[1]: labels})
    with pytest.raises(DataError, match=f"{names[0]}: row 0, column 0 is nan.*120"):
        load(f"npz:{tmp_path / 'b.npz'}")


def test_numeric_columns_of_a_table_are_vectors(table, caplog):
    data = load(f"table:{table}", keys=KEYS)
    assert data.features == ("age", "dose", "lab_a", "lab_b")
    assert data.classes == ("ill", "well")
    assert int((data.train.labels < 0).sum()) == 10
    assert (len(data.train), len(data.test)) == (26, 4)
    assert "are left out: name" in caplog.text
    found = look(f"table:{table}", keys=KEYS)
    assert (found.features, found.constant, found.called) == (4, ("lab_b",), "vectors")
    chosen = load(f"table:{table}", keys="label=diagnosis,features=lab_*+age")
    assert chosen.features == ("lab_a", "lab_b", "age")


def test_parquet_is_read_as_csv_is(table, tmp_path):
    csv, parquet = (pytest.importorskip(f"pyarrow.{name}") for name in ("csv", "parquet"))
    parquet.write_table(csv.read_csv(table), tmp_path / "patients.parquet")
    ours, theirs = (load(f"table:{file}", keys=KEYS) for file in (table, tmp_path / "patients.parquet"))
    assert torch.equal(ours.train.images, theirs.train.images)
    assert (ours.features, ours.classes) == (theirs.features, theirs.classes)


def test_clients_and_splits_of_a_table(tmp_path):
    rows = [f"{k},{k % 2},{'north' if k < 9 else 'south'},{'test' if k % 3 == 0 else ''}" for k in range(18)]
    (tmp_path / "a.csv").write_text("\n".join(["x,label,client,split", *rows]), encoding="utf-8")
    data = load(f"table:{tmp_path / 'a.csv'}")
    assert (len(data.train), len(data.test), data.clients) == (12, 6, ("north", "south"))
    assert data.test.images.flatten().tolist() == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    assert data.holders is not None
    assert data.holders.tolist() == [0] * 6 + [1] * 6


LABEL = "label=diagnosis"


@pytest.mark.parametrize(
    ("old", "new", "keys", "told"),
    [
        ("29,49", "29,", KEYS, r"line 31, column 'age' is nan"),
        ("29,49", "29,?", KEYS, r"line 31: '\?' in column 'age' is not a number.*data\.keys=without=age"),
        ("29,49", "29,inf", KEYS, "line 31, column 'age' is inf"),
        ("", "", "", r"no row has a label: there is no column 'label'; name its column with data\.keys"),
        ("", "", f"{LABEL},features=weight", r"no column 'weight' \(features in data\.keys\); its columns"),
        ("", "", f"{LABEL},without=weight", r"no column 'weight' \(without in data\.keys\)"),
        (".txt", ".png", KEYS, r"'name' .*data\.keys=file=name"),
    ],
)
def test_faults_of_a_table_are_named(table, old, new, keys, told):
    table.write_text(TABLE.replace(old, new) if old else TABLE, encoding="utf-8")
    with pytest.raises(DataError, match=told):
        load(f"table:{table}", keys=keys)


def test_a_table_without_numbers_or_paths_says_what_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("who,label\nanna,ill\nbert,well\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'file' .*who, label"):
        load(f"table:{tmp_path / 'a.csv'}")


def test_a_site_reads_vectors_as_a_simulation_does(table, tmp_path):
    form = Form(("ill", "well"), 4, 0, keys=KEYS)
    known = read_known(table, form)
    data = load(f"table:{table}", keys=KEYS)
    assert sorted(known.data.images[:, 0].tolist()) == sorted(
        torch.cat([data.train.images, data.test.images])[:, 0].tolist()
    )
    write_npz(tmp_path / "site.npz", known.data.images, known.data.labels, form.classes)
    site = open_site(tmp_path / "site.npz", form.classes, 4, 0, holdout=0.2)
    assert torch.equal(site.images, known.data.images)
    assert (len(site.labelled), len(site.unlabelled), len(site.held)) == (16, 10, 4)
    for channels, size, told in (
        (5, 0, "4 features, but 5 are required"),
        (1, 8, "vectors, but images"),
    ):
        with pytest.raises(DataError, match=told):
            open_site(tmp_path / "site.npz", form.classes, channels, size)
    with pytest.raises(DataError, match=r"folder, .*4 features"):
        open_site(tmp_path, form.classes, 4, 0)
    with pytest.raises(DataError, match="class 'ill' is not in the class list"):
        read_known(table, Form(("sick", "well"), 4, 0, keys=KEYS))


def test_columns_are_found_by_name_where_the_names_are_known(table, tmp_path):
    turned = tmp_path / "turned.csv"
    turned.write_text("lab_b,lab_a,id,dose,age\n7,0.25,3,1,21\n", encoding="utf-8")
    given = read_given([str(turned)], 4, 0, ("age", "dose", "lab_a", "lab_b"))
    assert given.images.tolist() == [[21.0, 1.0, 0.25, 7.0]]
    assert given.names == (f"{turned}, line 2",)
    with pytest.raises(DataError, match="has no column 'weight'"):
        read_given([str(turned)], 2, 0, ("age", "weight"))
    with pytest.raises(DataError, match=r"5 features, .*4"):
        read_given([str(turned)], 4, 0)
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(DataError, match=r"images, .*takes vectors"):
        read_given([str(tmp_path / "a.npz")], 4, 0)


def test_a_column_that_counts_the_rows_is_doubted(tmp_path, caplog):
    rows = "".join(f"{place + 7},{place % 3},{'ab'[place % 2]}\n" for place in range(20))
    (tmp_path / "a.csv").write_text(f"id,dose,label\n{rows}", encoding="utf-8")
    load("table:a.csv", tmp_path)
    assert "leave them out with data.keys=without=id" in caplog.text
    caplog.clear()
    for keys in ("without=id", "features=id+dose"):  # whoever names it means it
        load("table:a.csv", tmp_path, keys=keys)
    assert "count the rows" not in caplog.text
