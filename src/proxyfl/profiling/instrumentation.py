"""Instruments around a piece of work: what its spans took in time and in operations, and what convolutions
took of it. The work itself is as always.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from proxyfl.core.spans import AVERAGE, BEGIN, EVALUATE, FINISH, FOLD, STEP, serve_span, span, watched
from proxyfl.data.stream import Batch
from proxyfl.methods.context import ClientContext
from proxyfl.profiling.phases import REST

NOBODY = ""
"""What belongs to no phase: reporting progress."""

KEEPS = (BEGIN, FINISH, FOLD, AVERAGE, EVALUATE, serve_span(""))
"""Phases that keep what happens inside of them: the global model's predictions before the first step belong
to the beginning of the round."""


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

    def _settle(self, reading: float) -> None:
        if self.stack:
            self.spent[self.stack[-1]] += reading - self.last
        self.last = reading

    def phases(self) -> dict[str, float]:
        return {name: value for name, value in self.spent.items() if name != NOBODY}


class Recording:
    """The phases of what is done from :meth:`start` to :meth:`stop`, by what ``read`` gives where spans begin
    and end: a clock, or a count. ``unseen`` spans are no phases.
    """

    def __init__(self, read: Callable[[], float], unseen: Collection[str] = ()) -> None:
        self.read, self.totals = read, PhaseTotals(unseen)
        self.running = ExitStack()

    def start(self) -> None:
        self.running.enter_context(watched(self._span))

    def stop(self) -> None:
        """Does nothing where nothing was started."""
        self.running.close()

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def spent(self) -> dict[str, float]:
        """What each phase took."""
        return self.totals.phases()

    @contextmanager
    def _span(self, name: str) -> Iterator[None]:
        # What is left of a step goes by the span around it.
        self.totals.enter(REST if name == STEP else name, self.read())
        try:
            yield
        finally:
            self.totals.leave(self.read())


@contextmanager
def counted_operations(unseen: Collection[str] = ()) -> Iterator[PhaseTotals]:
    """Counts the operations of convolutions and matrix products of what is done inside, by phase."""
    counter = FlopCounterMode(display=False)
    with counter, Recording(counter.get_total_flops, unseen) as recording:
        yield recording.totals


class Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The time of every convolution of what is done inside, in the ``forward`` and the ``backward`` pass."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = read
        self.forward = self.backward = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "convolution" not in func.__name__:
            return func(*args, **(kwargs or {}))
        began = self.read()
        result = func(*args, **(kwargs or {}))
        if "backward" in func.__name__:
            self.backward += self.read() - began
        else:
            self.forward += self.read() - began
        return result


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
        stream, every = ctx.stream, ctx.stream.steps
        for ctx.epoch in range(epochs):
            # The last epoch, in which parts count and remember, always has its share. None has more steps
            # than are taken while it draws: the views of others would count.
            stream.steps = planned * (ctx.epoch + 1) // epochs - planned * ctx.epoch // epochs
            batches = stream.epoch()
            for _ in range(stream.steps):
                began, cpu = self.read(), time.process_time()
                yield batches
                self.seconds.append(self.read() - began)
                self.cpu_seconds += time.process_time() - cpu
                with span(NOBODY):
                    self.tell(len(self.seconds))
        stream.steps = every
