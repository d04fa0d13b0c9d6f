"""What the paper's figures show, from runs with numbers written by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.paper.figures import (
    excluded,
    groups,
    low_confidence_bars,
    lowconf,
    oracle_curves,
    proxies,
    recall,
    recall_curves,
    tuning,
    tuning_epochs,
)
from proxyfl.paper.figures.groups import Group
from proxyfl.report import curves
from written_runs import write_run


@pytest.fixture
def written(tmp_path):
    """A finished run with these accuracies, and what its rounds recorded about pseudo-labels."""

    def write(accuracies, pseudo=(), seed=1, **settings):
        place = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run = write_run(place, "proxyfl", seed, accuracies, **settings)
        kept = run.metrics
        for line in kept:
            line["pseudo"] = dict(pseudo[line["round"] - 1]) if pseudo else {}
        run.directory.metrics.write_text("".join(json.dumps(line) + "\n" for line in kept))
        return run

    return write


def test_a_group_has_mean_and_sample_deviation(written):
    runs = [written([0.1, 0.5], seed=1), written([0.2, 0.8], seed=2)]
    group = Group.of("proxyfl", runs, groups.accuracy)
    assert group.values == pytest.approx([30, 50])
    assert group.spread.mean == pytest.approx(40)
    assert group.error == pytest.approx(200**0.5)
    assert group.rows("a")[1] == (
        "a",
        2,
        pytest.approx(50),
        pytest.approx(40),
        pytest.approx(200**0.5),
        "run1",
    )
    alone = Group.of("proxyfl", runs[:1], groups.accuracy)
    assert (alone.error, alone.rows()[0][3]) == (0.0, "")


def test_pseudo_label_accuracy_is_that_of_the_last_rounds(written):
    pseudo = [{"accuracy": 0.1}, {}, {"accuracy": 0.5}, {"accuracy": 0.75}]
    run = written([0.5] * 4, pseudo, keep__last_rounds=2)
    assert groups.pseudo_accuracy(run) == pytest.approx(62.5)
    assert groups.tail([Group([run], [1.0])]) == "the last 2 rounds"


def test_runs_that_cannot_be_drawn_are_named(written, tmp_path):
    with pytest.raises(RunError, match="ProxyFL, alpha = 1"):
        low_confidence_bars({"ProxyFL": {1.0: []}}, tmp_path / "a")
    going = written([0.5], missing=1)
    with pytest.raises(RunError, match=r"not finished; .*'proxyfl resume .*run0'"):
        tuning_epochs({1: [going]}, [going], tmp_path / "a")
    blind = written([0.5])
    with pytest.raises(RunError, match=r"'excluded_visits' .*proxyfl"):
        excluded.excluded_bars({0.1: [blind]}, tmp_path / "a")
    with pytest.raises(RunError, match="0 epochs are no tuning"):
        tuning_epochs({0: [blind]}, [blind], tmp_path / "a")
    for draw in (
        lambda: excluded.excluded_bars({}, tmp_path / "a"),
        lambda: low_confidence_bars({"ProxyFL": {}}, tmp_path / "a"),
        lambda: oracle_curves({}, tmp_path / "a"),
        lambda: recall_curves([], tmp_path / "a"),
        lambda: tuning_epochs({}, [blind], tmp_path / "a"),
    ):
        with pytest.raises(RunError, match="no run to draw"):
            draw()
    assert not list(tmp_path.glob("a.*"))


def test_excluded_images_are_those_of_the_last_rounds(written):
    """The same number as in the table beside the picture, where the first rounds do not count either."""
    pseudo = [{"excluded_visits": count, "excluded_images": count / 2} for count in (900, 100, 200)]
    run = written([0.5] * 3, pseudo, keep__last_rounds=2)
    assert excluded._per_round(run, "excluded_visits") == 150
    assert excluded._per_round(run, "excluded_images") == 75


def test_excluded_bars_begin_at_zero_and_bear_their_values(written):
    run = written([0.5] * 3, keep__last_rounds=2)
    bars = {
        "visits": {0.1: Group([run] * 2, [1200.0, 1400.0]), 10.0: Group([run], [1000.0])},
        "different images": {0.1: Group([run] * 2, [700.0, 700.0]), 10.0: Group([run], [600.0])},
    }
    figure = excluded._draw(bars, "Excluded")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1300, 1000, 700, 600]
    assert len({bar.get_hatch() for bar in axes.patches}) == 2
    assert [text.get_text() for text in axes.texts] == ["1,300", "1,000", "700", "600"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "10"]
    assert axes.get_ylim()[0] == 0
    assert axes.get_title(loc="left") == "Excluded"
    assert "Mean of 1 to 2 seeds" in figure.get_supxlabel()
    assert "mean of the last 2 rounds" in figure.get_supxlabel()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["visits", "different images"]


def test_an_axis_that_does_not_begin_at_zero_is_said(written):
    run = written([0.5])
    near, far = Group([run], [82.0]), Group([run], [30.0])
    close = {"with": {0.1: Group([run], [80.0])}, "without": {0.1: near, 1.0: near}}
    low = {"with": {0.1: far}, "without": {0.1: far}}
    figure = lowconf._draw({"test accuracy": close, "pseudo-label accuracy": low}, "Low")
    test, pseudo = figure.axes
    assert (test.get_ylim()[0], pseudo.get_ylim()[0]) == (70, 0)
    assert figure.get_supxlabel().endswith("The axis of test accuracy begins at 70 %.")
    assert [bar.get_height() for bar in test.patches] == [80, 82, 82]
    centres = [bar.get_x() + bar.get_width() / 2 for bar in test.patches]
    assert centres == pytest.approx([-0.205, 0.205, 1.205])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["with", "without"]


def test_recall_lines_have_gaps_where_nothing_was_unsure():
    shares = {
        "set_recall": np.array([[50.0, np.nan, 70.0], [60.0, 65.0, 90.0]]),
        "low_accuracy": np.array([[10.0, np.nan, 30.0], [20.0, 25.0, 30.0]]),
    }
    axes = recall._draw(shares, 2, "Recall").axes[0]
    one, two = (line.get_ydata().tolist() for line in axes.lines)
    assert one == pytest.approx([55, np.nan, 80], nan_ok=True)
    assert two == pytest.approx([15, np.nan, 30], nan_ok=True)
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()
    assert len(axes.collections) == 2
    assert axes.get_ylim() == (0, 100)


def test_recall_covers_the_rounds_that_all_runs_have(written):
    three = written([0.5] * 3, [{"set_recall": 0.5}, {"set_recall": 0.75}, {"set_recall": 0.25}])
    two = written([0.5] * 2, [{"set_recall": 0.5}, {}])
    first, second = recall._shares([three, two], "set_recall").tolist()
    assert first == [50, 75]
    assert second == pytest.approx([50, np.nan], nan_ok=True)


def test_tuning_points_and_the_line_without(written):
    run = written([0.5])
    points = {1: Group([run], [86.0]), 100: Group([run, run], [87.0, 89.0])}
    figure = tuning._draw(points, Group([run], [83.0]), "Tuning")
    axes = figure.axes[0]
    flat, curve = axes.lines[0], axes.lines[1]
    assert set(flat.get_ydata()) == {83}
    assert (curve.get_xdata().tolist(), curve.get_ydata().tolist()) == ([1, 100], [86, 88])
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "100"]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {"without tuning", "with tuning"}


def test_a_point_every_so_many_rounds_and_the_last():
    numbers = np.stack([np.arange(1.0, 8.0), np.arange(3.0, 10.0)])
    figure = curves.draw_curves({"fedavg": numbers}, "Accuracy", 3, "what")
    line = figure.axes[0].lines[0]
    assert line.get_xdata().tolist() == [3, 6, 7]
    assert line.get_ydata().tolist() == [4, 7, 8]
    assert line.get_markevery() == (0, 1)
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} == {(3, 3), (3, 5), (6, 6), (6, 8), (7, 7), (7, 9)}
    assert figure.legends[0].get_title().get_text() == "what"
    with pytest.raises(ConfigError, match="a point every 0 rounds"):
        curves.draw_curves({"fedavg": numbers}, "Accuracy", 0)


def test_shares_of_corrected_labels_differ_in_greyscale():
    assert len({look.line for look in lowconf.LOOKS}) == len({look.marker for look in lowconf.LOOKS}) == 4


@pytest.mark.parametrize(("classes", "few"), [(10, True), (20, True), (30, False)])
def test_every_mark_is_numbered_where_classes_are_few_else_averages(classes, few):
    labels = np.tile(np.arange(classes), 3)
    kinds = ["client"] * classes + ["average"] * classes + ["tuned"] * classes
    made = proxies.Proxies(np.zeros((3 * classes, 2)), kinds, [4] * classes + [None] * 2 * classes, labels)
    places = np.stack([labels, np.repeat([0, 1, 2], classes)], 1).astype(float)
    figure = proxies._draw(made, places, [f"name{label}" for label in range(classes)], "Proxies")
    axes = figure.axes[0]
    written = [text.get_text() for text in axes.texts]
    assert written == [str(label) for label in (labels if few else range(classes))]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:3] == ["of a client", "average of clients", "tuned by the server"]
    assert (f"{classes - 1}  name{classes - 1}" in names) == few
    assert len(axes.lines) == classes  # from each average to what tuning made of it
    clouds = axes.collections
    assert [len(cloud.get_offsets()) for cloud in clouds] == [classes] * 3
    assert ("10 colours serve all 30 classes" in figure.get_supxlabel()) == (not few)
    if few:
        assert all(len(np.unique(cloud.get_facecolors(), axis=0)) == classes for cloud in clouds)
    else:
        points, averages, tuned = clouds
        assert len(tuned.get_facecolors()) == 0  # hollow: what lies under it is seen
        assert len(np.unique(points.get_facecolors(), axis=0)) == 10
        assert axes.texts[7].xy == pytest.approx(averages.get_offsets()[7])
