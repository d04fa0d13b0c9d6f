"""Tasks and answers through Flower's records: the same to the bit, and nothing malformed gets through."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from wireless import carried

from proxyfl.core.state import Failure, Task, Update
from proxyfl.engines.flower import codec
from toybox import same_bits

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
NAMES = st.text("abcz_./-0é ", min_size=1, max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits of any dtype: NaN with its payload, infinities, negative zero."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    width = torch.empty(0, dtype=dtype).element_size()
    raw = draw(st.binary(min_size=math.prod(shape) * width, max_size=math.prod(shape) * width))
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    if dtype is torch.bool:
        return (flat % 2 == 0).reshape(shape)
    return flat.view(dtype).reshape(shape)


named = st.dictionaries(NAMES, tensors(), max_size=4)


def bits(found: dict[str, torch.Tensor]) -> dict[str, tuple[object, ...]]:
    def raw(value: torch.Tensor) -> bytes:
        return value.contiguous().flatten().view(torch.uint8).numpy().tobytes()

    return {name: (value.dtype, tuple(value.shape), raw(value)) for name, value in found.items()}


def through(records: RecordDict) -> RecordDict:
    return carried(Message(records, 7, "train")).content


@settings(max_examples=60, deadline=None)
@given(
    *(named, named, named, named),
    *(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 1000)),
)
def test_a_task_arrives_to_the_bit(weights, extras, personal, carry, round, client, version, times):
    task = Task(round, client, weights, extras, personal, version, carry, times=times)
    records = codec.task_records(task, codec.pack_broadcast(task), {"setup": ["é", 1.5]})
    found, header = codec.read_task(through(records))
    assert (found.round, found.client, found.version, found.times) == (round, client, version, times)
    assert header["setup"] == ["é", 1.5]
    for part in ("weights", "extras", "personal", "carry"):
        assert bits(getattr(found, part)) == bits(getattr(task, part))


@settings(max_examples=60, deadline=None)
@given(
    named,
    named,
    st.dictionaries(NAMES, st.floats(), max_size=4),
    st.integers(-5, 2**53),
    st.floats(0, 1e6),
    st.lists(named.filter(bool), max_size=3),
)
def test_an_update_arrives_to_the_bit(weights, extras, metrics, samples, seconds, again):
    update = Update(3, 1, samples, weights, extras, metrics, {}, seconds, tuple(again))
    found = codec.read_answer(through(codec.answer_records(update)), Task(3, 1, {}))
    assert isinstance(found, Update), found
    assert (found.round, found.client, found.samples, found.seconds) == (3, 1, samples, seconds)
    assert bits(found.weights) == bits(weights)
    assert bits(found.extras) == bits(extras)
    assert list(map(bits, found.again)) == list(map(bits, again))
    assert json.dumps(found.metrics, sort_keys=True) == json.dumps(metrics, sort_keys=True)


@pytest.mark.parametrize("times", [0, -1, 1001, True, 2.0, "2", None])
def test_a_task_that_asks_for_implausibly_many_trainings_is_malformed(times):
    task = Task(1, 0, {})
    records = codec.task_records(task, codec.pack_broadcast(task), {"times": times})
    with pytest.raises(codec.Malformed, match=r"times|trainings"):
        codec.read_task(records)


def test_a_failure_arrives_without_what_a_terminal_obeys():
    sent = Failure(3, 1, "no \x1b[31mdisk\n\tround 4:" + 200 * " " + "forged", "line\nline\x07")
    found = codec.read_answer(through(codec.answer_records(sent)), Task(3, 1, {}))
    assert found == Failure(3, 1, "no \\x1b[31mdisk round 4: forged", "line\nline\\x07")


def update_records(**changes):
    header = {"kind": "update", "round": 3, "client": 1, "samples": 5, "seconds": 0.0, **changes}
    return codec.content(header, {codec.OWN: codec.packed({"weights/a": torch.ones(2)})})


def blob(data: bytes, stype: str = codec.STYPE) -> RecordDict:
    record = ArrayRecord({"tensors": Array("uint8", (len(data),), stype, data)})
    return codec.content({"kind": "update", "round": 3, "client": 1, "samples": 5}, {codec.OWN: record})


def metric_records(values) -> RecordDict:
    records = update_records()
    records[codec.METRICS] = MetricRecord(values)
    return records


LYING = len(b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}').to_bytes(8, "little") + (
    b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}' + bytes(4)
)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (RecordDict(), "no readable header"),
        (RecordDict({codec.HEADER: ConfigRecord({"json": "{"})}), "no readable header"),
        (RecordDict({codec.HEADER: ConfigRecord({"json": "[" * 100_000})}), "no readable header"),
        (RecordDict({codec.HEADER: ConfigRecord({"json": "[1]"})}), "not a table"),
        (codec.content({"kind": "update"}), "'own' is missing"),
        (codec.content({"kind": "thanks"}), "neither an update nor a failure"),
        (codec.content({"kind": "failure", "reason": 3}), "'reason' is not text"),
        (update_records(samples=True), "'samples' is not a plausible whole number"),
        (update_records(samples=1.5), "'samples' is not a plausible whole number"),
        (update_records(samples=10**300), "'samples' is not a plausible whole number"),
        (update_records(round="3"), "'round' is not a plausible whole number"),
        (update_records(client=2), "for client 2"),
        (blob(b""), "cannot be read"),
        (blob(b"\xff" * 40), "cannot be read"),
        (blob(LYING), "cannot be read"),
        (blob(b"cos\nsystem\n", "pickle"), "kind 'pickle'"),
        (metric_records({"loss": [1.0, 2.0]}), "'loss' is not a number"),
        (metric_records({"loss\n": 1.0}), "name cannot be used"),
        (metric_records({f"m{k}": 1.0 for k in range(1001)}), "1001 metrics"),
        (metric_records({}), None),
    ],
)
def test_a_malformed_answer_is_a_failure_that_says_why(records, reason):
    found = codec.read_answer(records, Task(3, 1, {}))
    if reason is None:
        assert isinstance(found, Update)
        assert same_bits(found.weights, {"a": torch.ones(2)})
    else:
        assert isinstance(found, Failure)
        assert (found.round, found.client) == (3, 1)
        assert reason in found.reason


@pytest.mark.parametrize("seconds", [10**400, -(10**400), float("nan"), float("inf"), "3", None])
def test_seconds_that_cannot_be_are_none(seconds):
    found = codec.read_answer(update_records(seconds=seconds), Task(3, 1, {}))
    assert isinstance(found, Update)
    assert found.seconds == 0.0


def test_whatever_else_breaks_the_reading_is_a_failure_too(monkeypatch):
    monkeypatch.setattr(codec, "_seconds", lambda header: float(10**400))
    found = codec.read_answer(update_records(), Task(3, 1, {}))
    assert found == Failure(3, 1, "its answer cannot be used (OverflowError)")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_bytes_give_an_update_or_a_failure_and_nothing_else(data):
    whole = codec.packed({"weights/a": torch.ones(2), "extras/b": torch.zeros(1)})["tensors"].data
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    found = codec.read_answer(blob(bytes(raw[:cut])), Task(3, 1, {}))
    assert isinstance(found, (Update, Failure))
