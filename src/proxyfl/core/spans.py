"""Names for what a program is doing, which torch's profiler shows: ``with span("forward"): ...``

Nobody profiles a usual run, and then a span costs one question. Under ``torch.profiler`` it is a range of its
trace; ``proxyfl profile`` makes its table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

PREFIX = "proxyfl: "
"""What the names of spans begin with in a trace."""

STEP = "step"
WEAK, STRONG, TEACHER, FORWARD = "weak views", "strong views", "teacher", "forward"
PSEUDO, LOSSES, BACKWARD, OBSERVE = "pseudo-labels", "losses", "backward", "observe"
"""Parts of a step. Optimisers bring spans of their own, which torch puts there."""

BEGIN, FINISH, ROUND = "begin the round", "finish the round", "load and send weights"
"""What a client does once a round, outside of the steps."""

FOLD, AVERAGE, EVALUATE = "check and fold updates", "average", "evaluation"
"""What the server does once a round, beside the hooks of parts."""

_NOTHING = nullcontext()
_wait: Callable[[], None] | None = None


def span(name: str) -> AbstractContextManager[Any]:
    """What happens inside goes by this name in a trace."""
    if not _profiler_enabled():
        return _NOTHING
    return record_function(PREFIX + name) if _wait is None else _awaited(name, _wait)


def loss_span(*names: str) -> str:
    """How the losses of a step are called."""
    return f"loss: {' + '.join(names)}"


def serve_span(part: str) -> str:
    """How the server's half of a part is called."""
    return f"server: {part}"


@contextmanager
def synchronised(device: torch.device) -> Iterator[None]:
    """While this lasts, spans begin and end when the device has done what it was asked for until then."""
    global _wait
    before, _wait = _wait, waiter(device)
    try:
        yield
    finally:
        _wait = before


def waiter(device: torch.device) -> Callable[[], None] | None:
    """Waits until the device has nothing left to do; None where calls return only then."""
    if device.type not in ("cuda", "mps"):
        return None
    return torch.cuda.synchronize if device.type == "cuda" else torch.mps.synchronize


@contextmanager
def _awaited(name: str, wait: Callable[[], None]) -> Iterator[None]:
    wait()
    with record_function(PREFIX + name):
        try:
            yield
        finally:
            wait()
