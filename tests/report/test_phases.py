from __future__ import annotations

import csv
import dataclasses
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from proxyfl.core.errors import RunError
from proxyfl.profiling.phases import Phase, Profile
from proxyfl.report.phases import COLOURS, _draw, caption, kind_of, phase_bars

PROFILE = Profile(
    method="proxyfl", data="cifar10", network="resnet8 of width 1", dtype="bf16", device="cpu", threads=1,
    client_id=5, images=2500, steps=5, steps_per_round=95, updates=8, test_images=(2048, 10000),
    step=(
        Phase("weak views", 10.0),
        Phase("teacher", 60.0, 9.0),
        Phase("forward", 100.0, 16.0),
        Phase("loss: icpl", 20.0),
        Phase("backward", 200.0, 32.0),
        Phase("rest", 10.0),
    ),
    client=(Phase("begin the round", 30.0),),
    server=(Phase("server: gpt", 110.0), Phase("evaluation", 900.0)),
    conv_forward=0.25, conv_backward=0.5, peak=200.0, memory=10**9, cores=1.0,
)  # fmt: skip


def test_the_picture_and_its_numbers_are_written(tmp_path):
    png, svg, data = phase_bars(PROFILE, tmp_path / "step")
    with Image.open(png) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        assert np.asarray(picture.convert("L")).std() > 5
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    with data.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows[:2]] == ["weak views", "teacher"]
    teacher = rows[1]
    assert (teacher["where"], teacher["ms"], teacher["share_of_step"]) == ("step", "60.0", "0.15")
    assert (teacher["gflop"], teacher["gflop_per_second"]) == ("9.0", "150.0")
    assert [(row["where"], row["phase"], row["share_of_step"]) for row in rows[6:]] == [
        ("client", "begin the round", ""), ("server", "server: gpt", ""), ("server", "evaluation", "")
    ]  # fmt: skip


def test_bars_are_as_long_as_phases_and_named():
    above, below = _draw(PROFILE).axes
    assert above.get_title(loc="left").startswith("Time per step")
    assert above.get_xlabel() == "ms per step, 400 in total"
    assert [tick.get_text() for tick in above.get_yticklabels()] == [phase.name for phase in PROFILE.step]
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in above.patches}
    assert [bars[place].get_width() for place in range(6)] == [10, 60, 100, 20, 200, 10]
    assert [text.get_text() for text in above.texts][2] == "100.0 ms · 25.0 %"
    assert [tick.get_text() for tick in below.get_yticklabels()][-1] == "evaluation"
    assert below.get_xlabel() == "ms"


def test_what_belongs_together_has_a_colour_and_none_is_used_twice():
    kinds = [kind_of(phase.name) for phase in PROFILE.step]
    assert kinds == ["views", "network", "network", "losses", "network", "other"]
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_no_words_lie_on_each_other():
    figure = _draw(PROFILE)
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in (*axes.texts, *axes.get_yticklabels())]
        boxes.append(axes.get_legend().get_window_extent())
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_the_caption_says_what_was_measured():
    told = caption(PROFILE)
    assert "resnet8 of width 1, bf16, 1 thread on cpu" in told
    assert "Client 5: 2,500 images, mean of 5 of 95 steps. Server: 8 updates." in told
    assert "Network: 158 GFLOP/s; a matrix product here: 200." in told


def test_sums_and_projections():
    assert PROFILE.step_ms == 400
    assert PROFILE.network_phase == Phase("network", 360.0, 57.0)
    assert PROFILE.round_seconds == pytest.approx(38.03)


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(RunError, match="no step to draw"):
        phase_bars(dataclasses.replace(PROFILE, step=()), tmp_path / "step")
