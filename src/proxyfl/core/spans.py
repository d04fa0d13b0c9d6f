"""Names for what a program is doing, which torch's profiler shows: ``with span("forward"): ...``

Nobody watches a usual run, and then a span costs one question. Under ``torch.profiler`` it is a range of its
trace; ``proxyfl profile`` watches spans itself (:func:`watched`), since recording every operation makes small
steps several times as slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.profiler import record_function

PREFIX = "proxyfl: "
"""What the names of spans begin with in a trace."""

STEP = "step"
WEAK, STRONG, TEACHER, FORWARD = "weak views", "strong views", "teacher", "forward"
PSEUDO, LOSSES, BACKWARD, OBSERVE = "pseudo-labels", "losses", "backward", "observe"
OPTIMISER = "optimiser"
"""Parts of a step."""

BEGIN, FINISH, ROUND = "begin the round", "finish the round", "load and send weights"
"""What a client does once a round, outside of the steps."""

FOLD, AVERAGE, EVALUATE = "check and fold updates", "average", "evaluation"
"""What the server does once a round, beside the hooks of parts."""

_NOTHING = nullcontext()
_watch: Callable[[str], AbstractContextManager[Any]] | None = None


def span(name: str) -> AbstractContextManager[Any]:
    """What happens inside goes by this name."""
    if _watch is not None:
        return _watch(name)
    return record_function(PREFIX + name) if _profiler_enabled() else _NOTHING


@contextmanager
def watched(watch: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """While this lasts, every span is the one that ``watch`` returns for its name."""
    global _watch
    before, _watch = _watch, watch
    try:
        yield
    finally:
        _watch = before


def loss_span(*names: str) -> str:
    """How the losses of a step are called."""
    return f"loss: {' + '.join(names)}"


def serve_span(part: str) -> str:
    """How the server's half of a part is called."""
    return f"server: {part}"
