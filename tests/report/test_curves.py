from __future__ import annotations

import csv
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from proxyfl.core.errors import RunError
from proxyfl.report import plot_style
from proxyfl.report.curves import _accuracies, accuracy_curves, draw_curves


def line_of(figure, method):
    return next(line for line in figure.axes[0].lines if line.get_label() == method)


def test_curves_are_drawn_from_real_runs(runs, tmp_path):
    png, svg, data = accuracy_curves(runs, tmp_path / "accuracy")
    with Image.open(png) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        assert np.asarray(picture.convert("L")).std() > 5
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert data == tmp_path / "accuracy.csv"


def test_the_csv_holds_the_metrics_to_the_last_digit(runs, tmp_path):
    _, _, path = accuracy_curves(runs, tmp_path / "accuracy")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    for method, each in runs.items():
        for run in each:
            mine = [row for row in rows if row["run"] == run.path.name]
            assert {row["method"] for row in mine} == {method}
            assert {int(row["seed"]) for row in mine} == {run.config.seed}
            found = [(int(row["round"]), float(row["accuracy"])) for row in mine]
            assert found == [(line["round"], line["accuracy"]) for line in run.metrics]


def test_the_line_is_the_mean_in_per_cent_and_the_band_reaches_from_lowest_to_highest():
    figure = draw_curves({"fedavg": np.array([[10.0, 20.0], [30.0, 60.0]])}, "Test accuracy")
    assert line_of(figure, "fedavg").get_ydata().tolist() == [20, 40]
    assert line_of(figure, "fedavg").get_xdata().tolist() == [1, 2]
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} == {(1, 10), (1, 30), (2, 20), (2, 60)}


def test_one_run_has_no_band_and_no_note_about_one():
    figure = draw_curves({"fedavg": np.array([[10.0, 20.0]])}, "Test accuracy")
    assert not figure.axes[0].collections
    assert figure.get_supxlabel() == ""


def test_one_round_has_no_fractions_of_a_round_beside_it():
    figure = draw_curves({"fedavg": np.array([[10.0]])}, "Test accuracy")
    assert all(tick.is_integer() for tick in figure.axes[0].get_xticks())


def test_what_is_drawn_is_named():
    curves = {"fedavg": np.array([[10.0, 20.0]]), "proxyfl": np.array([[10.0, 30.0], [12.0, 32.0]])}
    figure = draw_curves(curves, "Test accuracy on digits")
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "Test accuracy on digits"
    assert axes.get_xlabel() == "communication round"
    assert axes.get_ylabel() == "test accuracy (%)"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["proxyfl", "fedavg"]
    assert "mean of 1 to 2 runs" in figure.get_supxlabel()
    assert line_of(figure, "proxyfl").get_color() == plot_style.VERMILLION


def test_accuracies_cover_the_rounds_that_all_runs_have(rewritten):
    both = [rewritten("a", [0.5, 0.75]), rewritten("b", [0.25])]
    assert _accuracies("fedavg", both).tolist() == [[50], [25]]


def test_a_run_without_a_round_is_refused(rewritten, tmp_path):
    with pytest.raises(RunError, match="every run of fedavg"):
        accuracy_curves({"fedavg": [rewritten("a", [0.5]), rewritten("b", [])]}, tmp_path / "accuracy")
    assert not (tmp_path / "accuracy.png").exists()


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(RunError, match="no run to draw"):
        accuracy_curves({}, tmp_path / "accuracy")
