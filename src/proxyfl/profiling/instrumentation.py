"""Instruments around a piece of work: what its spans took in time and in operations, and what convolutions
took of it. They read what torch's profiler sees; the work itself is as always.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from statistics import median
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profiler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from proxyfl.core.spans import (
    AVERAGE,
    BEGIN,
    EVALUATE,
    FINISH,
    FOLD,
    PREFIX,
    STEP,
    serve_span,
    span,
    synchronised,
)
from proxyfl.data.stream import Batch
from proxyfl.methods.context import ClientContext
from proxyfl.profiling.phases import OPTIMISER, REST

NOBODY = ""
"""What belongs to no phase: reporting progress."""

MOST_PER_EVENT = 2e-6
"""Seconds: recording an event costs less; what steps take longer beyond that has other reasons."""

KEEPS = (BEGIN, FINISH, FOLD, AVERAGE, EVALUATE, serve_span(""))
"""Phases that keep what happens inside of them: the global model's predictions before the first step belong
to the beginning of the round."""


def phase_of(name: str) -> str | None:
    """The phase that a range of a trace stands for; None where it is none of ours. What is left of a step
    goes by the span around it; torch itself puts spans around what optimisers do.
    """
    if name.startswith("Optimizer."):
        return OPTIMISER
    if not name.startswith(PREFIX):
        return None
    return REST if name == PREFIX + STEP else name.removeprefix(PREFIX)


class PhaseTotals:
    """Puts what a reading grows by (seconds, operations) down to the innermost phase, so phases add up.

    ``unseen`` phases are no phases: what they take is put down to the one around them.
    """

    def __init__(self, unseen: Collection[str] = ()) -> None:
        self.unseen = unseen
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.stack: list[str] = []
        self.last = 0.0

    def enter(self, phase: str, reading: float) -> None:
        self._settle(reading)
        around = self.stack[-1] if self.stack else NOBODY
        kept = phase in self.unseen or around.startswith(KEEPS)
        self.stack.append(around if kept else phase)

    def leave(self, reading: float) -> None:
        self._settle(reading)
        self.stack.pop()

    def refund(self, price: float) -> None:
        """Take back what the instrument itself cost the present phase."""
        if self.stack:
            self.spent[self.stack[-1]] -= price

    def _settle(self, reading: float) -> None:
        if self.stack:
            self.spent[self.stack[-1]] += reading - self.last
        self.last = reading

    def phases(self) -> dict[str, float]:
        return {name: value for name, value in self.spent.items() if name != NOBODY}


def innermost(
    ranges: Iterable[tuple[str | None, float, float]], unseen: Collection[str] = (), price: float = 0.0
) -> dict[str, float]:
    """What each phase took, given nested ranges (phase, start, end) of one thread in any order.

    Every range, those of no phase as well, cost ``price`` to record, which is taken back.
    """
    totals, ends = PhaseTotals(unseen), list[float]()
    for phase, start, end in sorted(ranges, key=lambda found: (found[1], -found[2])):
        while ends and ends[-1] <= start:
            totals.leave(ends.pop())
        if phase is not None:
            totals.enter(phase, start)
            ends.append(end)
        totals.refund(price)
    while ends:
        totals.leave(ends.pop())
    return totals.phases()


class Recording:
    """torch's profiler from :meth:`start` to :meth:`stop`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.cuda
        self.profiler = torch_profiler(activities=activities)
        self.running = ExitStack()

    def start(self) -> None:
        with _quiet():
            self.running.enter_context(self.profiler)
        self.running.enter_context(synchronised(self.device))

    def stop(self) -> None:
        """Does nothing where nothing was started."""
        self.running.close()

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def price(self, recorded: Sequence[float], plain: Sequence[float]) -> float:
        """Seconds that recording costs per event, given how long each step took with it and without."""
        more = len(recorded) * (median(recorded) - median(plain))
        return min(MOST_PER_EVENT, max(0.0, more / len(self._ranges)))

    def spent(self, unseen: Collection[str] = (), price: float = 0.0) -> dict[str, float]:
        """The seconds of each phase, without what recording cost at this price per event."""
        return {name: max(0.0, seconds) for name, seconds in innermost(self._ranges, unseen, price).items()}

    @cached_property
    def _ranges(self) -> list[tuple[str | None, float, float]]:
        return [
            (
                phase_of(event.name) if event.is_user_annotation else None,
                event.time_range.start / 1e6,
                event.time_range.end / 1e6,
            )
            for event in self.profiler.events()  # type: ignore[no-untyped-call]
            if event.device_type == DeviceType.CPU
        ]

    def convolutions(self) -> tuple[float, float]:
        """The seconds in kernels of convolutions, forward and backward."""
        spent = {True: 0.0, False: 0.0}
        for event in self.profiler.key_averages():
            if event.key.startswith("aten::") and "conv" in event.key:
                microseconds = event.self_device_time_total if self.cuda else event.self_cpu_time_total
                spent["backward" in event.key] += microseconds / 1e6
        return spent[False], spent[True]


@contextmanager
def counted_operations(unseen: Collection[str] = ()) -> Iterator[PhaseTotals]:
    """Counts the operations of convolutions and matrix products of what is done inside, by phase."""
    counter, totals = FlopCounterMode(display=False), PhaseTotals(unseen)
    with Recording(torch.device("cpu")), counter, _SpanReader(totals, counter.get_total_flops):
        yield totals


class _SpanReader(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes a reading where spans begin and end: torch dispatches that as it does operations."""

    def __init__(self, totals: PhaseTotals, read: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.totals, self.read = totals, read
        self.ours: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.profiler._record_function_enter_new.default:
            phase = phase_of(args[0])
            self.ours.append(phase is not None)
            if phase is not None:
                self.totals.enter(phase, self.read())
        elif func is torch.ops.profiler._record_function_exit._RecordFunction and self.ours.pop():
            self.totals.leave(self.read())
        return func(*args, **(kwargs or {}))


class SomeSteps:
    """The steps of one client's round that are taken: all, or ``wanted`` ones spread over its epochs."""

    def __init__(
        self,
        wanted: int | None = None,
        read: Callable[[], float] = time.perf_counter,
        tell: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.wanted, self.read, self.tell = wanted, read, tell
        self.whole_round = 0
        self.seconds: list[float] = []
        self.cpu_seconds = 0.0

    def __call__(self, ctx: ClientContext) -> Iterator[Iterator[Batch]]:
        epochs = ctx.settings.epochs
        self.whole_round = ctx.stream.steps * epochs
        planned = min(self.wanted or self.whole_round, self.whole_round)
        for ctx.epoch in range(epochs):
            batches = ctx.stream.epoch()
            # The last epoch, in which parts count and remember, always has its share.
            for _ in range(planned * (ctx.epoch + 1) // epochs - planned * ctx.epoch // epochs):
                began, cpu = self.read(), time.process_time()
                yield batches
                self.seconds.append(self.read() - began)
                self.cpu_seconds += time.process_time() - cpu
                with span(NOBODY):
                    self.tell(len(self.seconds))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines that torch's recorder writes about itself; it reads this when it first starts."""
    name = "KINETO_LOG_LEVEL"
    given = name in os.environ
    os.environ.setdefault(name, "99")
    try:
        yield
    finally:
        if not given:
            del os.environ[name]
