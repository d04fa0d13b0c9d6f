"""Tensors in memory that several processes see."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load, save

from proxyfl.core.errors import RunError
from proxyfl.core.flat import Flat, Layout
from proxyfl.core.state import Failure, Task, Update
from proxyfl.engines import shared
from proxyfl.engines.remote_error import describe, raised
from proxyfl.engines.serialization import pack_answer, pack_task, unpack_answer, unpack_task
from proxyfl.engines.shared import SharedTensors
from toybox import same_bits

TENSORS = {
    "images": torch.arange(2 * 3 * 5, dtype=torch.uint8).reshape(2, 3, 5),
    "strided": torch.arange(12.0).reshape(3, 4).T,
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "truth": torch.tensor([True, False]),
    "scalar": torch.tensor(7),
    "none": torch.empty(0, 4),
}


@pytest.mark.parametrize("large", [False, True])
def test_what_is_written_is_read(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    if large:
        monkeypatch.setattr(shared, "LARGE", 0.0)
    block = SharedTensors()
    layout = block.write(TENSORS)
    assert all(start % shared.ALIGNED == 0 for *_, start in layout["tensors"])
    assert same_bits(shared.read(block.fd, layout), TENSORS)
    block.close()
    block.close()


def test_a_reader_cannot_change_it_and_a_larger_content_fits() -> None:
    block = SharedTensors()
    layout = block.write({"a": torch.zeros(3)})
    shared.read(block.fd, layout)["a"].fill_(5)
    assert shared.read(block.fd, layout)["a"].tolist() == [0, 0, 0]
    longer = {"a": torch.arange(100_000.0), "b": torch.ones(2)}
    assert same_bits(shared.read(block.fd, block.write(longer)), longer)
    block.close()


def test_another_process_sees_it_and_it_has_no_name() -> None:
    block = SharedTensors()
    layout = block.write({"a": torch.tensor([1.25, 2.5])})
    code = f"from proxyfl.engines import shared; print(shared.read({block.fd}, {layout!r})['a'].tolist())"
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[block.fd], capture_output=True, text=True)
    assert done.stdout == "[1.25, 2.5]\n"
    assert os.fstat(block.fd).st_nlink == 0
    block.close()


def test_tasks_and_answers_survive_the_wire() -> None:
    weights, extras = {"w": torch.ones(2)}, {"prior/p": torch.zeros(1)}
    task = Task(3, 5, weights, extras, {"h": torch.arange(3)}, 2, {"m": torch.ones(1)})
    there = unpack_task(*pack_task(task), weights, extras)
    assert vars(there).keys() == vars(task).keys()
    assert (there.round, there.client, there.version) == (3, 5, 2)
    assert same_bits(there.personal, task.personal)
    assert same_bits(there.carry, task.carry)
    update = Update(3, 5, 40, weights, extras, {"steps": 2.0, "loss/x": 0.1 + 0.2}, {"m": torch.ones(1)}, 1.5)
    back = unpack_answer(*pack_answer(update))
    assert isinstance(back, Update)
    assert (back.round, back.client, back.samples, back.seconds) == (3, 5, 40, 1.5)
    assert back.metrics == update.metrics
    for field in ("weights", "extras", "carry"):
        assert same_bits(getattr(back, field), getattr(update, field))
    failure = Failure(3, 5, "no", "detail")
    assert unpack_answer(*pack_answer(failure)) == failure


def test_weights_that_lie_as_those_sent_cross_as_few_long_tensors() -> None:
    sent = {"a": torch.zeros(2, 3), "n": torch.tensor(0), "b": torch.zeros(2)}
    first = Flat.of({"a": torch.arange(6.0).view(2, 3), "n": torch.tensor(4), "b": torch.ones(2)})
    second = Flat.of({name: value + 1 for name, value in first.items()})
    update = Update(3, 5, 40, first, {"prior/p": torch.ones(1)}, carry={"m": torch.ones(1)}, again=(second,))
    header, tensors = pack_answer(update, Layout(sent))
    assert sorted(tensors) == ["carry/m", "extras/prior/p", "long/0", "long/1", "long/2", "long/3"]
    back = unpack_answer(header, load(save(tensors)), Layout(sent))
    assert isinstance(back, Update)
    assert isinstance(back.weights, Flat)
    assert same_bits(back.weights, first)
    assert [same_bits(weights, second) for weights in back.again] == [True]
    assert same_bits(back.extras, update.extras)
    assert same_bits(back.carry, update.carry)


@pytest.mark.parametrize("weights", [{"a": torch.ones(3)}, Flat.of({"a": torch.ones(3)})])
def test_other_weights_than_those_sent_cross_by_name(weights: dict[str, torch.Tensor]) -> None:
    sent = Layout({"a": torch.zeros(2)})
    header, tensors = pack_answer(Update(3, 5, 40, weights), sent)
    assert sorted(tensors) == ["weights/a"]
    back = unpack_answer(header, tensors, sent)
    assert isinstance(back, Update)
    assert same_bits(back.weights, weights)


def test_tensors_that_share_memory_may_be_sent() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    _, tensors = pack_task(Task(1, 0, {}, personal={"a": whole, "b": whole.T}))
    save(tensors)
    assert same_bits(tensors, {"personal/a": whole, "personal/b": whole.T})


class MyRunError(RunError):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RunError("gone"), RunError, "gone"),
        (MyRunError("gone"), RunError, "gone"),
        (OSError(28, "No space left on device", "/x"), OSError, "[Errno 28] No space left on device: '/x'"),
        (OSError("just text"), OSError, "just text"),
        (FileNotFoundError(2, "No such file"), FileNotFoundError, "[Errno 2] No such file"),
    ],
)
def test_errors_come_back_as_what_they_were(error: Exception, kind: type[Exception], text: str) -> None:
    back = raised(json.loads(json.dumps(describe(error))))
    assert isinstance(back, kind)
    assert str(back) == text


def test_other_errors_keep_their_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        back = raised(describe(error))
    assert isinstance(back, RuntimeError)
    assert "ValueError: odd" in str(back)
