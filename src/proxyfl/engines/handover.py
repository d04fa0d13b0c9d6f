"""Objects for a program's own child processes: how a worker gets the trainer, whatever it was built from.

Pickles are made and opened here and nowhere else, and only between a process and the children it started,
over a pipe that no one else has: nothing of them is ever on disk or on a network. Classes of installed
modules are named; those of a script or a notebook, which a child cannot import, are sent whole.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from proxyfl.core.errors import RunError


def packed(thing: Any) -> bytes:
    """Bytes for a child process; :class:`CannotHandOver` where there is no way."""
    try:
        content: bytes = cloudpickle.dumps(thing)
    except Exception as error:  # any object's own way of refusing
        raise CannotHandOver(f"{type(error).__name__}: {error}") from error
    return content


def unpacked(content: bytes) -> Any:
    """What the parent process packed."""
    return pickle.loads(content)


class CannotHandOver(RunError):
    """An object that no other process can be given."""
