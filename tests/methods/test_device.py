"""No line of a client's training is for the CPU only.

The nearest thing to a GPU that every machine has is torch's ``meta`` device: tensors without numbers. A whole
federation is played on it, and :class:`Accelerator` watches every operation as a GPU would: tensors of two
devices do not mix, and a step does not wait for a number to come back. Fake tensors that claim to be on
``cuda`` would say the same, but a CPU-only build of torch has no device guard for them: it ends the process
as soon as an operation on one is recorded for backward (seen with torch 2.13). They serve here for
what runs without a graph.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from proxyfl.core.errors import MethodError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.data.stream import Batch, Stream
from proxyfl.federation.loop import Engine
from proxyfl.methods import recipes, registry
from proxyfl.runs.simulation import Simulation
from toybox import make_simulation, play, tiny_config

NAMES = [recipe.name for recipe in recipes()]
COMPOSITIONS = ["sage+proxyfl", "fedlabel+proxyfl", "fixmatch-lpl+prox"]
aten = torch.ops.aten

MOVES = {aten._to_copy.default, aten.to.dtype_layout}
READS = MOVES | {aten._local_scalar_dense.default, aten.copy_.default, aten.bincount.default}
"""What may bring numbers back between steps: sums, weights and state of a finished round, and the histogram
that ``equalise`` counts for a strong view."""

SELECTS: dict[str, tuple[Any, str]] = {
    "feddb": (aten.nonzero.default, "once a round: batches of the images selected at its start"),
}
"""Parts that must look at numbers to go on, with the operation that does and why it is needed."""


class WrongDevice(MethodError):
    """An operation that a GPU would refuse, or for which a step would wait."""


class Accelerator(TorchDispatchMode):
    """Lets the ``meta`` device stand for a GPU. Outside of steps numbers may come back: zeros."""

    def __init__(self, parts: Iterable[str] = ()) -> None:
        super().__init__()
        self.between_steps = READS | {SELECTS[part][0] for part in parts if part in SELECTS}
        self.in_step, self.steps = False, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = list(tensors_of(args))
        if not any(tensor.is_meta for tensor in tensors):
                print("UPLOAD", func)
            return func(*args, **kwargs)
        if reads(func, args, kwargs):
            return self._read(func, args, kwargs)
        if any(tensor.is_cpu and tensor.dim() for tensor in tensors) and func is not aten.copy_.default:
            raise WrongDevice(f"{func} mixes tensors of the device with tensors on the CPU")
        if self.in_step and func is aten.copy_.default and args[1].is_cpu:
            import traceback
            st="".join(traceback.format_stack())
            if "load_state_dict" not in st: print("UPLOADC", st[-1500:])
            print("UPLOADC", func)
        return func(*args, **kwargs)

    def _read(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.in_step:
            raise WrongDevice(f"{func} makes the step wait for the device")
        if func not in self.between_steps:
            raise WrongDevice(f"{func} looks at numbers on the device")
        return STAND_INS[func](*args, **kwargs)

    def watched(self, epoch: Callable[[Stream], Iterator[Batch]]) -> Callable[[Stream], Iterator[Batch]]:
        """``Stream.epoch``, but what its user does with a batch is a step."""

        def epoch_of_steps(stream: Stream) -> Iterator[Batch]:
            for batch in epoch(stream):
                self.in_step, self.steps = True, self.steps + 1
                try:
                    yield batch
                finally:
                    self.in_step = False

        return epoch_of_steps


def tensors_of(args: Iterable[Any]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_of(arg)


def is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


def reads(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operation needs numbers that are on the device."""
    if func in MOVES:
        return kwargs.get("device") is not None and not is_meta(kwargs["device"])
    if func is aten.copy_.default:
        return bool(args[0].is_cpu)
    if func in (aten.index.Tensor, aten.index_put_.default):
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return func in STAND_INS


STAND_INS: dict[Any, Callable[..., Any]] = {
    aten._local_scalar_dense.default: lambda value: torch.zeros((), dtype=value.dtype).item(),
    **dict.fromkeys(MOVES, lambda value, **_: torch.zeros(value.shape, dtype=value.dtype)),
    aten.copy_.default: lambda target, source: target.zero_(),
    aten.bincount.default: lambda value, weights=None, minlength=0: value.new_zeros(minlength),
    aten.nonzero.default: lambda value: value.new_zeros((value.numel(), value.dim()), dtype=torch.int64),
}


class AnswersAll:
    """An engine that ends the test, with the client's traceback, when a client fails."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for answer in self.engine.run(tasks):
            assert isinstance(answer, Update), answer.detail or answer.reason
            yield answer


@functools.cache
def drawn(clients: int) -> Simulation:
    return make_simulation([6] * clients, [17] * clients)


def play_on_device(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Accelerator:
    config = tiny_config(name, **{"clients": 1, "per_round": 1, "device": "meta", **settings})
    method = registry.create(config.method.name, config.method.parameters, config.fidelity)
    device = Accelerator(part.name for part in method.parts)
    monkeypatch.setattr(Stream, "epoch", device.watched(Stream.epoch))
    # torch knows no autocast for this device and raises even where it is switched off.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    with device:
        play(config, drawn(config.federation.clients), folder, engine=AnswersAll)
    return device


@pytest.mark.parametrize("name", NAMES + COMPOSITIONS)
def test_a_client_trains_on_any_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_on_device(name, tmp_path, monkeypatch).steps == 4
