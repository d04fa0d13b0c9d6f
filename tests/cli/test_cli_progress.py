"""The live observer and the small drawings, on literal numbers."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from proxyfl.cli.present import as_toml, curve, percent
from proxyfl.core.state import Failure, Update
from proxyfl.runs import progress
from proxyfl.runs.progress import LiveProgress


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=120, highlight=False, color_system=None)


def told(where: Console) -> str:
    text = where.file.getvalue()  # type: ignore[attr-defined]
    return re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", text)


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a test says so."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


def update(client: int) -> Update:
    return Update(round=1, client=client, samples=1, weights={})


def finished(accuracy: float) -> SimpleNamespace:
    return SimpleNamespace(metrics={"accuracy": accuracy}, validation=None)


def test_without_a_terminal_each_round_is_a_line(clock):
    where = console(terminal=False)
    with LiveProgress(where, 2) as follower:
        for round, accuracy in ((1, 0.5), (2, 0.25)):
            follower.round_started(round, [3])
            follower.answered(update(3))
            clock.seconds += 2
            follower.round_finished(finished(accuracy))
    assert told(where) == (
        "round 1/2  accuracy 50.00 %  best 50.00 %  2 s\nround 2/2  accuracy 25.00 %  best 50.00 %  2 s\n"
    )


def test_in_a_terminal_a_bar_shows_rounds_clients_accuracy_and_time_left(clock):
    where = console(terminal=True)
    with LiveProgress(where, 10, before=[0.75, 0.5]) as follower:
        follower.round_started(3, [1, 2, 3])
        clock.seconds += 8
        follower.answered(update(1))
        follower.bars.refresh()
        shown = told(where)
        assert "round 3/10" in shown
        assert "clients 1/3" in shown
        assert "accuracy 50.00 %  best 75.00 %" in shown
        # A quarter of a round took 8 s, so the other 7¾ take 248 s.
        assert "4:08 min left" in shown
        follower.round_finished(finished(0.9))
        follower.bars.refresh()
        assert "accuracy 90.00 %  best 90.00 %" in told(where)


def test_time_left_follows_the_pace_of_this_process_and_runs_down(clock):
    follower = LiveProgress(console(terminal=False), 10, before=[0.1] * 4)
    assert follower.seconds_left(4.0) is None
    clock.seconds += 30
    follower.updated = clock.seconds
    assert follower.seconds_left(7.0) == pytest.approx(30)
    clock.seconds += 12
    assert follower.seconds_left(7.0) == pytest.approx(18)
    clock.seconds += 100
    assert follower.seconds_left(7.0) == 0


def test_a_failed_client_is_told_even_when_quiet():
    where = console(terminal=False)
    with LiveProgress(where, 3, quiet=True) as follower:
        follower.round_started(1, [4, 5])
        follower.answered(Failure(1, 4, "ValueError: not\nfinite [/]"))
        follower.answered(update(5))
        follower.round_finished(finished(0.5))
    assert told(where) == "round 1: client 4 failed: ValueError: not finite [/]\n"


def test_a_round_without_able_clients_moves_on(clock):
    where = console(terminal=True)
    with LiveProgress(where, 2) as follower:
        follower.round_started(1, [])
        follower.round_finished(finished(0.0))
    assert "clients 0/0" in told(where)
    assert "accuracy 0.00 %  best 0.00 %" in told(where)


def test_nothing_is_shown_before_the_first_round():
    where = console(terminal=True)
    with LiveProgress(where, 2) as follower:
        assert follower.bars is None
    assert told(where) == ""


def test_values_look_as_in_a_config_file():
    assert [as_toml(value) for value in (True, 0.5, 120.0, 3, "", "own", (1, 2))] == [
        "true", "0.5", "120", "3", '""', "own", "[1,2]",
    ]  # fmt: skip
    assert percent(0.12345) == "12.35 %"


def test_a_curve_rises_from_the_lowest_block_to_the_highest():
    assert curve([0.0, 1.0], 10, height=2) == [" █", "▁█"]
    assert curve([0.0, 0.5, 1.0], 10, height=1) == ["▁▅█"]
    assert curve([3.0, 3.0], 10, height=1) == ["▁▁"]
    assert curve([0.0, 0.0, 1.0, 1.0], 2, height=1) == ["▁█"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=300), st.integers(1, 80), st.integers(1, 6))
def test_a_curve_fits_its_box_and_every_column_has_ink(values, width, height):
    rows = curve(values, width, height)
    assert len(rows) == height
    assert {len(row) for row in rows} == {min(width, len(values))}
    assert " " not in rows[-1]
