"""Spans, and what is read from them."""

from __future__ import annotations

import pytest
import torch

from proxyfl.core import spans
from proxyfl.core.spans import BEGIN, FORWARD, LOSSES, PREFIX, ROUND, STEP, TEACHER, span, synchronised
from proxyfl.profiling.instrumentation import (
    NOBODY,
    PhaseTotals,
    Recording,
    counted_operations,
    innermost,
    phase_of,
)
from proxyfl.profiling.phases import OPTIMISER, REST, step_phases

CPU = torch.device("cpu")


def test_time_belongs_to_the_innermost_phase():
    assert innermost([("b", 1, 3), ("a", 0, 7), ("c", 15, 31)]) == {"a": 1 + 4, "b": 2, "c": 16}
    assert innermost([("b", 0, 3), ("a", 0, 7), ("b", 3, 7)]) == {"a": 0, "b": 7}
    assert innermost([]) == {}


def test_what_happens_once_a_round_keeps_what_happens_inside():
    ranges = [(ROUND, 0, 20), (BEGIN, 1, 6), (TEACHER, 2, 5), (REST, 6, 16), (BEGIN, 8, 9), (TEACHER, 9, 12)]
    assert innermost(ranges) == {ROUND: 5, BEGIN: 6, REST: 6, TEACHER: 3}
    assert innermost([("server: gpt", 0, 10), (OPTIMISER, 2, 4)]) == {"server: gpt": 10}


def test_phases_that_are_none_go_to_the_one_around_them():
    ranges = [
        (REST, 0, 10),
        ("loss: gpt", 1, 3),
        ("loss: icpl", 3, 7),
        (NOBODY, 8, 9),
        ("server: gpt", 10, 11),
    ]
    assert innermost(ranges, {"loss: gpt", "server: gpt"}) == {REST: 5, "loss: icpl": 4}


def test_what_recording_costs_is_taken_back_where_it_was_spent():
    ranges = [(REST, 0, 10), (None, 1, 2), (FORWARD, 3, 8), (None, 4, 6), (None, 5, 6), (None, 20, 30)]
    assert innermost(ranges, price=0.5) == {REST: 5 - 2 * 0.5, FORWARD: 5 - 3 * 0.5}


def test_the_price_of_an_event():
    recording = Recording(CPU)
    recording._ranges = [(REST, 0.0, 1.0)] * 2_000_000
    assert recording.price([3.0, 9.0, 3.5], [2.5, 3.0, 1.0]) == pytest.approx(3 * (3.5 - 2.5) / 2e6)
    assert recording.price([3.0], [4.0]) == 0
    assert recording.price([9.0], [4.0]) == 2e-6


def test_names_of_a_trace():
    assert phase_of(PREFIX + FORWARD) == FORWARD
    assert phase_of(PREFIX + STEP) == REST
    assert phase_of("Optimizer.step#SGD.step") == phase_of("Optimizer.zero_grad#Adam.zero_grad") == OPTIMISER
    assert phase_of("aten::conv2d") is None
    assert phase_of("somebody else's") is None


def test_losses_go_by_the_names_that_the_method_gave_them():
    spent = {REST: 10.0, "loss: icpl": 3.0, LOSSES: 2.0, "observe": 4.0, "loss: supervised": 1.0, ROUND: 99.0}
    own = "loss: unlabelled + feedback"
    found = step_phases(spent, ["unlabelled", "feedback"])
    assert found == {"loss: supervised": 1, own: 2, "loss: icpl": 3, "observe": 4, REST: 10}
    assert list(found) == ["loss: supervised", own, "loss: icpl", "observe", REST]
    assert step_phases({REST: 1.0, LOSSES: 2.0}, []) == {REST: 3}
    assert step_phases({REST: 9999.0, "observe": 1.0, "pseudo-labels": 1.0}, []) == {REST: 10_001}


def test_a_span_is_nothing_until_somebody_profiles():
    assert span(FORWARD) is span(TEACHER)
    with Recording(CPU) as recording:
        assert span(FORWARD) is not span(TEACHER)
        with span(STEP), span(FORWARD):
            torch.ones(3).sum()
    assert span(FORWARD) is span(TEACHER)
    assert set(recording.spent()) == {REST, FORWARD}


def test_torch_names_what_optimisers_do():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    with Recording(CPU) as recording, span(STEP):
        weight.sum().backward()
        optimiser.step()
    assert recording.spent()[OPTIMISER] > 0


def test_convolutions_are_found_in_both_directions():
    images, kernel = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3, requires_grad=True)
    with Recording(CPU) as recording, span(STEP):
        torch.nn.functional.conv2d(images, kernel).sum().backward()
    forward, backward = recording.convolutions()
    assert forward > 0
    assert backward > 0
    assert forward + backward < sum(recording.spent().values())


def test_operations_belong_to_the_innermost_phase():
    a, b = torch.ones(3, 4), torch.ones(4, 5)
    with counted_operations(unseen=["loss: none"]) as totals, span(STEP):
        with span(FORWARD):
            a @ b
        with torch.profiler.record_function("somebody else's"), span("loss: none"):
            a @ b
        torch.optim.SGD([torch.nn.Parameter(a)]).step()
    assert totals.phases() == {REST: 2 * 3 * 4 * 5, FORWARD: 2 * 3 * 4 * 5, OPTIMISER: 0}


def test_spans_wait_for_a_device_that_computes_by_itself(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("waited"))
    with synchronised(torch.device("cuda")):
        with span(FORWARD):
            pass
        assert not calls  # nobody profiles
        with Recording(CPU), synchronised(torch.device("cuda")), span(FORWARD):
            calls.append("computed")
    assert calls == ["waited", "computed", "waited"]
    assert spans._wait is None


def test_a_recording_ends_when_the_work_fails():
    with pytest.raises(ZeroDivisionError), Recording(CPU), span(STEP):
        1 / 0  # noqa: B018
    assert not torch.autograd._profiler_enabled()
    Recording(CPU).stop()


def test_a_ledger_loses_nothing():
    totals = PhaseTotals()
    for reading, name in enumerate(("a", "b", "", "c")):
        totals.enter(name, reading)
    for reading in range(4, 8):
        totals.leave(reading)
    assert sum(totals.spent.values()) == 7
    assert totals.phases() == {"a": 2, "b": 2, "c": 1}
