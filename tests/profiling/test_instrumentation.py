"""Spans, and what is read from them."""

from __future__ import annotations

import itertools

import pytest
import torch

from proxyfl.core import spans
from proxyfl.core.spans import BEGIN, FORWARD, LOSSES, OPTIMISER, PREFIX, ROUND, STEP, TEACHER, span
from proxyfl.profiling.hardware import clock
from proxyfl.profiling.instrumentation import (
    NOBODY,
    Convolutions,
    PhaseTotals,
    Recording,
    counted_operations,
)
from proxyfl.profiling.phases import REST, step_phases

CPU = torch.device("cpu")


def spent(*ranges, unseen=()):
    """What nested ranges (phase, start, end), sorted by their start, leave behind."""
    totals, ends = PhaseTotals(unseen), []
    for phase, start, end in ranges:
        while ends and ends[-1] <= start:
            totals.leave(ends.pop())
        totals.enter(phase, start)
        ends.append(end)
    while ends:
        totals.leave(ends.pop())
    return totals.phases()


def test_time_belongs_to_the_innermost_phase():
    assert spent(("a", 0, 7), ("b", 1, 3), ("c", 15, 31)) == {"a": 1 + 4, "b": 2, "c": 16}
    assert spent(("a", 0, 7), ("b", 0, 3), ("b", 3, 7)) == {"a": 0, "b": 7}
    assert spent() == {}


def test_what_happens_once_a_round_keeps_what_happens_inside():
    ranges = [(ROUND, 0, 20), (BEGIN, 1, 6), (TEACHER, 2, 5), (REST, 6, 16), (BEGIN, 8, 9), (TEACHER, 9, 12)]
    assert spent(*ranges) == {ROUND: 5, BEGIN: 6, REST: 6, TEACHER: 3}
    assert spent(("server: gpt", 0, 10), (OPTIMISER, 2, 4)) == {"server: gpt": 10}


def test_phases_that_are_none_go_to_the_one_around_them():
    ranges = [
        (REST, 0, 10),
        ("loss: gpt", 1, 3),
        ("loss: icpl", 3, 7),
        (NOBODY, 8, 9),
        ("server: gpt", 10, 11),
    ]
    assert spent(*ranges, unseen={"loss: gpt", "server: gpt"}) == {REST: 5, "loss: icpl": 4}


def test_readings_are_taken_where_spans_begin_and_end():
    with Recording(itertools.count().__next__) as recording, span(ROUND), span(STEP):
        with span(FORWARD):
            pass
        with span(TEACHER):
            pass
    assert recording.spent() == {ROUND: 1 + 1, REST: 1 + 1 + 1, FORWARD: 1, TEACHER: 1}


def test_losses_go_by_the_names_that_the_method_gave_them():
    spent = {REST: 10.0, "loss: icpl": 3.0, LOSSES: 2.0, "observe": 4.0, "loss: supervised": 1.0, ROUND: 99.0}
    own = "loss: unlabelled + feedback"
    found = step_phases(spent, ["unlabelled", "feedback"])
    assert found == {"loss: supervised": 1, own: 2, "loss: icpl": 3, "observe": 4, REST: 10}
    assert list(found) == ["loss: supervised", own, "loss: icpl", "observe", REST]
    assert step_phases({REST: 1.0, LOSSES: 2.0}, []) == {REST: 3}
    assert step_phases({REST: 9999.0, "observe": 1.0, "pseudo-labels": 1.0}, []) == {REST: 10_001}


def test_a_span_is_nothing_until_somebody_watches():
    assert span(FORWARD) is span(TEACHER)
    with Recording(clock(CPU)) as recording:
        assert span(FORWARD) is not span(TEACHER)
        with span(STEP), span(FORWARD):
            torch.ones(3).sum()
    assert span(FORWARD) is span(TEACHER)
    assert set(recording.spent()) == {REST, FORWARD}


def test_under_the_profiler_of_torch_a_span_is_a_range_of_its_trace():
    with torch.profiler.profile() as profiler, span(FORWARD):
        torch.ones(3).sum()
    assert PREFIX + FORWARD in {event.key for event in profiler.key_averages()}


def test_convolutions_are_timed_in_both_directions():
    images, kernel = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    with Convolutions(itertools.count().__next__) as found:
        torch.nn.functional.conv2d(images, kernel).relu().sum().backward()
        with torch.no_grad():
            torch.nn.functional.conv2d(images, kernel)
    assert (found.forward, found.backward) == (2, 1)


def test_operations_belong_to_the_innermost_phase():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with counted_operations(unseen=["loss: none"]) as totals, span(STEP):
        with span(FORWARD):
            a @ b
        with torch.profiler.record_function("somebody else's"), span("loss: none"):
            a @ b
        with span(OPTIMISER):
            torch.optim.SGD([torch.nn.Parameter(a)]).step()
    assert totals.phases() == {REST: 2 * 3 * 4 * 5, FORWARD: 2 * 3 * 4 * 5, OPTIMISER: 0}


def test_the_clock_waits_for_a_device_that_computes_by_itself(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("waited"))
    with span(FORWARD):
        assert not calls  # nobody watches
    with Recording(clock(torch.device("cuda"))), span(FORWARD):
        calls.append("computed")
    assert calls == ["waited", "computed", "waited"]
    assert spans._watch is None


def test_a_recording_ends_when_the_work_fails():
    with pytest.raises(ZeroDivisionError), Recording(clock(CPU)), span(STEP):
        1 / 0  # noqa: B018
    assert spans._watch is None
    Recording(clock(CPU)).stop()


def test_a_ledger_loses_nothing():
    totals = PhaseTotals()
    for reading, name in enumerate(("a", "b", "", "c")):
        totals.enter(name, reading)
    for reading in range(4, 8):
        totals.leave(reading)
    assert sum(totals.spent.values()) == 7
    assert totals.phases() == {"a": 2, "b": 2, "c": 1}
