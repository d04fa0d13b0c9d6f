from __future__ import annotations

import csv
import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from proxyfl.core.errors import RunError
from proxyfl.data.partition import Partition, make_partition
from proxyfl.data.ragged import Ragged
from proxyfl.report.bubbles import _draw, partition_bubbles
from proxyfl.runs.simulation import prepare


def counts(labelled, unlabelled):
    return {"labelled": np.array(labelled), "unlabelled": np.array(unlabelled)}


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_a_run_is_drawn_with_the_counts_of_its_partition(runs, tmp_path):
    run = runs["proxyfl"][0]
    png, svg, data = partition_bubbles(run, tmp_path / "partition")
    with Image.open(png) as picture:
        assert np.asarray(picture.convert("L")).std() > 5
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    labels = prepare(run.config).dataset.train.labels
    labelled, unlabelled = run.partition.class_counts(labels, 10)
    with data.open(newline="") as file:
        rows = [tuple(row.values()) for row in csv.DictReader(file)]
    assert rows == [
        tuple(map(str, (k, c, c, labelled[k, c], unlabelled[k, c]))) for k in range(4) for c in range(10)
    ]
    assert sum(int(row[3]) + int(row[4]) for row in rows) == 150


def test_a_partition_can_be_drawn_before_anything_is_trained(tmp_path):
    labels = np.arange(60) % 3
    partition = make_partition(labels, clients=5, per_class=4)
    _, _, data = partition_bubbles((partition, labels, ["ant", "bee", "cow"]), tmp_path / "partition.png")
    with data.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["class_name"] for row in rows} == {"ant", "bee", "cow"}
    assert sum(int(row["labelled"]) for row in rows) == 12
    assert sum(int(row["unlabelled"]) for row in rows) == 48


def test_area_is_in_proportion_to_the_count():
    figure = _draw(counts([[1, 4], [0, 9]], [[2, 2], [2, 2]]), ["a", "b"], "Who holds what")
    sides = [path.get_extents().width for path in figure.axes[0].collections[0].get_paths()]
    areas = np.array(sides) ** 2
    np.testing.assert_allclose(areas / areas[0], [1, 4, 9], rtol=1e-3)
    assert max(sides) < 1


def test_every_count_and_every_sum_is_printed():
    figure = _draw(counts([[1, 4], [0, 9]], [[0, 0], [0, 12345]]), ["a", "b"], "Who holds what")
    first, second = figure.axes
    assert words(first) == ["1", "4", "9", "5", "9", "1", "13", "sum"]
    assert words(second) == ["12k", "0", "12k", "0", "12k", "sum"]
    assert first.get_title(loc="left") == "Labelled: 14 images, 7.0 per client on average"
    assert second.get_title(loc="left") == "Unlabelled: 12,345 images, 6,172.5 per client on average"
    assert "largest bubbles are 9 (labelled) and 12,345 (unlabelled)" in figure.get_supxlabel()
    assert [label.get_text() for label in first.get_yticklabels()] == ["a", "b"]


def test_numbers_do_not_overlap_with_20_clients_and_10_classes():
    full = np.full((20, 10), 8888)
    figure = _draw(counts(full, full), [f"class {label}" for label in range(10)], "Who holds what")
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 200 + 20 + 10 + 1
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(text.get_fontsize() >= 8 for text in axes.texts)


def test_many_classes_are_drawn_without_numbers_and_say_so():
    some = np.ones((3, 21), dtype=int)
    figure = _draw(counts(some, some), [str(label) for label in range(21)], "Who holds what")
    assert words(figure.axes[0]) == []
    assert "More than 20 classes" in figure.get_supxlabel()


def test_of_many_clients_the_first_are_drawn_and_all_are_in_the_csv(tmp_path):
    labels = np.arange(200) % 2
    partition = make_partition(labels, clients=50, per_class=50, scheme="iid")
    _, _, data = partition_bubbles((partition, labels, ["a", "b"]), tmp_path / "partition")
    assert len(data.read_text().splitlines()) == 1 + 50 * 2
    figure = _draw(
        dict(zip(("labelled", "unlabelled"), partition.class_counts(labels, 2), strict=True)), "ab", "x"
    )
    assert "the first 40 of 50 clients" in figure.get_supxlabel()
    assert len(figure.axes[0].get_xticklabels()) == 40


def test_of_very_many_classes_the_first_are_drawn():
    some = np.ones((2, 200), dtype=int)
    figure = _draw(counts(some, some), [f"a very long name indeed, number {n}" for n in range(200)], "x")
    assert "the first 150 of 200 classes" in figure.get_supxlabel()
    assert len(figure.axes[0].collections[0].get_paths()) == 2 * 150
    assert max(len(label.get_text()) for label in figure.axes[0].get_yticklabels()) == 20


def test_an_empty_partition_is_refused(tmp_path):
    nothing = Ragged.from_sizes(np.array([], dtype=np.int64), np.zeros(3, dtype=np.int64))
    with pytest.raises(RunError, match="holds no image"):
        partition_bubbles((Partition(nothing, nothing), [0, 1], ["a", "b"]), tmp_path / "partition")


def test_what_the_server_holds_is_told(tmp_path):
    labels = [0, 1, 2] * 30
    split = make_partition(labels, clients=4, per_class=5, scheme="iid", where="server")
    *_, table = partition_bubbles((split, labels, ["a", "b", "c"]), tmp_path / "held")
    lines = table.read_text().splitlines()
    assert lines[1:4] == ["server,0,a,5,0", "server,1,b,5,0", "server,2,c,5,0"]
    assert sum(int(line.split(",")[3]) for line in lines[4:]) == 0
    drawn = (tmp_path / "held.svg").read_text()
    assert "Labelled: 15 images at the server" in drawn
    assert "15 labelled images, the clients have none: a 5, b 5, c 5." in drawn
    some = make_partition(labels, clients=4, scheme="iid", where="partial", per_class=0, labelled_clients=2)
    partition_bubbles((some, labels, ["a", "b", "c"]), tmp_path / "some")
    named = ", ".join(map(str, np.flatnonzero(some.labelled.sizes)))
    told = f"2 of 4 clients have labels ({named}), for {some.labelled.sizes.sum()} images."
    assert told in (tmp_path / "some.svg").read_text()
