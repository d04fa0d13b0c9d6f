"""Where time goes, seen from outside: phases put around the functions that training calls anyway.

Training knows nothing of this. For as long as :func:`watched` lasts, a few functions are replaced by ones
that tell a :class:`Clock` when they begin and end; afterwards everything is as it was.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from proxyfl.data.stream import Batch, Stream
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.fold import Fold
from proxyfl.federation.loop import Server
from proxyfl.methods.base import overrides
from proxyfl.methods.context import ClientContext

WEAK, STRONG, TEACHER, FORWARD = "weak views", "strong views", "teacher", "forward"
PSEUDO, LOSSES, BACKWARD, OPTIMISER, OBSERVE = "pseudo-labels", "losses", "backward", "optimiser", "observe"
REST = "rest"
"""What is left of a step."""

BEGIN, FINISH, ROUND = "begin the round", "finish the round", "load and send weights"
"""What a client does once a round, outside of the steps."""

FOLD, AVERAGE, EVALUATE = "check and fold updates", "average", "evaluation"
IDLE = ""
"""Time that belongs to nobody: reporting progress."""

WHOLE = frozenset({WEAK, STRONG, TEACHER, FORWARD, BACKWARD, OPTIMISER, BEGIN, FINISH, ROUND, IDLE})
"""Phases that keep what happens inside of them: a network's pass inside the teacher's is the teacher's."""


class Clock:
    """Puts what a reading grows by (seconds, operations) down to the innermost phase, so phases add up."""

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self.read = read
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.stack: list[str] = []
        self.last = 0.0

    def enter(self, phase: str, *, always: bool = False) -> None:
        """Begin a phase; inside of one that keeps everything it changes nothing, unless ``always``."""
        self._settle()
        kept = bool(self.stack) and self.stack[-1] in WHOLE and not always
        self.stack.append(self.stack[-1] if kept else phase)

    def leave(self) -> None:
        self._settle()
        self.stack.pop()

    @contextmanager
    def phase(self, name: str, *, always: bool = False) -> Iterator[None]:
        self.enter(name, always=always)
        try:
            yield
        finally:
            self.leave()

    def around(self, phase: str, function: Callable[..., Any], *, always: bool = False) -> Callable[..., Any]:
        """The function, timed as this phase."""

        def timed(*args: Any, **options: Any) -> Any:
            with self.phase(phase, always=always):
                return function(*args, **options)

        return timed

    def _settle(self) -> None:
        now = self.read()
        if self.stack:
            self.spent[self.stack[-1]] += now - self.last
        self.last = now


class Steps:
    """The steps of one client's round that are really taken: all, or ``wanted`` ones spread over its epochs.

    ``recorder`` is entered before the first of them and left after the last.
    """

    def __init__(
        self,
        clock: Clock,
        wanted: int | None = None,
        recorder: AbstractContextManager[Any] | None = None,
        tell: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.clock, self.wanted, self.recorder, self.tell = clock, wanted, recorder, tell
        self.recording = ExitStack()
        self.epoch = self.whole_round = 0
        self.seconds: list[float] = []
        self.cpu_seconds = 0.0
        self.losses: tuple[str, ...] = ()

    def batches(self, epoch: Callable[[Stream], Iterator[Batch]], stream: Stream) -> Iterator[Batch]:
        """An epoch's batches. From one to the next is a step; drawing the batch is part of it."""
        if self.clock.stack[-1:] != [ROUND]:  # a method that walks through its data by itself
            yield from epoch(stream)
            return
        self.whole_round = stream.steps * stream.epochs
        planned = min(self.wanted or self.whole_round, self.whole_round)
        # The last epoch, in which parts count and remember, always has its share.
        quota = planned * (self.epoch + 1) // stream.epochs - planned * self.epoch // stream.epochs
        self.epoch += 1
        source = epoch(stream)
        for _ in range(quota):
            if self.recorder is not None and not self.seconds:
                with self.clock.phase(IDLE, always=True):
                    self.recording.enter_context(self.recorder)
            began, cpu = self.clock.read(), time.process_time()
            self.clock.enter(REST, always=True)
            yield next(source)
            self.clock.leave()
            self.seconds.append(self.clock.read() - began)
            self.cpu_seconds += time.process_time() - cpu
            with self.clock.phase(IDLE, always=True):
                if len(self.seconds) == planned:
                    self.recording.close()
                self.tell(len(self.seconds))


@contextmanager
def watched(trainer: ClientTrainer, steps: Steps) -> Iterator[None]:
    """While this lasts, what ``trainer`` does is put down to phases of ``steps.clock``."""
    clock, method = steps.clock, trainer.method
    epoch, view = Stream.epoch, Stream._view
    teacher = vars(ClientContext)["teacher"].func
    network = type(trainer.network)

    def timed_view(stream: Stream, how: Any, index: Any) -> Any:
        with clock.phase(f"{getattr(how, '__name__', 'other')} views"):
            return view(stream, how, index)

    def named_losses(*args: Any) -> Any:
        with clock.phase(LOSSES):
            found = losses(*args)
        steps.losses = tuple(dict.fromkeys((*steps.losses, *found)))
        return found

    losses = method.losses
    changes: list[tuple[Any, str, Any]] = [
        (Stream, "epoch", lambda stream: steps.batches(epoch, stream)),
        (Stream, "_view", timed_view),
        (ClientContext, "teacher", _property("teacher", clock.around(BEGIN, teacher, always=True))),
        (ClientContext, "predict", clock.around(TEACHER, ClientContext.predict)),
        (ClientContext, "forward", clock.around(FORWARD, ClientContext.forward)),
        (network, "__call__", clock.around(FORWARD, network.__call__)),
        (torch.autograd, "backward", clock.around(BACKWARD, torch.autograd.backward)),
        (torch.autograd, "grad", clock.around(BACKWARD, torch.autograd.grad)),
        (Optimizer, "zero_grad", clock.around(OPTIMISER, Optimizer.zero_grad)),
        (method, "losses", named_losses),
        (trainer, "train", clock.around(ROUND, trainer.train)),
        *[
            (method, name, clock.around(phase, getattr(method, name), always=phase in (BEGIN, FINISH)))
            for name, phase in (
                ("begin_all", BEGIN),
                ("finish_all", FINISH),
                ("observe_all", OBSERVE),
                ("decide", PSEUDO),
                ("pseudo_label", PSEUDO),
                ("supervised", loss_name("supervised")),
            )
        ],
        *[
            (addon, "term", clock.around(loss_name(addon.name), addon.term))
            for addon in method.addons
            if overrides(addon, "term")
        ],
    ]
    with patched(changes), _optimiser_hooks(clock), steps.recording:
        yield


@contextmanager
def watched_server(federation: Server, clock: Clock) -> Iterator[None]:
    """While this lasts, the server's part of a round is put down to phases of ``clock``."""
    changes: list[tuple[Any, str, Any]] = [
        (Fold, "take", clock.around(FOLD, Fold.take)),
        (Fold, "mean", clock.around(AVERAGE, Fold.mean)),
        (federation, "evaluate", clock.around(EVALUATE, federation.evaluate)),
        *[
            (part, "serve", clock.around(f"server: {part.name}", part.serve))
            for part in federation.method.parts
            if overrides(part, "serve")
        ],
    ]
    with patched(changes):
        yield


@contextmanager
def patched(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes (of, name, value) for a while; then what was there before, or nothing where nothing was."""
    absent = object()
    with ExitStack() as undo:
        for place, name, value in changes:
            before = vars(place).get(name, absent)
            setattr(place, name, value)
            if before is absent:
                undo.callback(delattr, place, name)
            else:
                undo.callback(setattr, place, name, before)
        yield


def loss_name(*names: str) -> str:
    return f"loss: {' + '.join(names)}"


def _property(name: str, function: Callable[..., Any]) -> Any:
    made = cached_property(function)
    made.__set_name__(ClientContext, name)
    return made


@contextmanager
def _optimiser_hooks(clock: Clock) -> Iterator[None]:
    """Around the step of every optimiser, whichever a method brings."""
    before = register_optimizer_step_pre_hook(lambda *_: clock.enter(OPTIMISER))
    after = register_optimizer_step_post_hook(lambda *_: clock.leave())
    try:
        yield
    finally:
        before.remove()
        after.remove()
