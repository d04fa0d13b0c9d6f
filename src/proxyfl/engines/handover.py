"""Objects for a program's own processes: how a worker gets the trainer, whatever it was built from.

Pickles are made and opened here and nowhere else: between a process and the children it started, over a pipe
that no one else has, and between a process and its actors on a Ray cluster, whose nodes trust each other.
Nothing of them is kept. Classes of installed modules are named; those of a script or a notebook, which a
child cannot import, are sent whole.
"""

from __future__ import annotations

import pickle
import sys
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import cloudpickle

from proxyfl.core.errors import RunError
from proxyfl.core.plugins import FILE_PREFIX


def packed(thing: Any) -> bytes:
    """Bytes for a child process; :class:`CannotHandOver` where there is no way."""
    with ExitStack() as stack:
        for module in _loaded_from_elsewhere():
            cloudpickle.register_pickle_by_value(module)
            stack.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            content: bytes = cloudpickle.dumps(thing)
        except Exception as error:  # any object's own way of refusing
            raise CannotHandOver(f"{type(error).__name__}: {error}") from error
    return content


def _loaded_from_elsewhere() -> list[ModuleType]:
    """Modules that were loaded from a file which no search path leads to: a child could not import them.
    Plug-ins it loads by itself.
    """
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(getattr(module, "__file__", None), str)
        and "." not in name
        and not name.startswith(("__", FILE_PREFIX))
        and not any(finder.find_spec(name, None) for finder in sys.meta_path)
    ]


def unpacked(content: bytes) -> Any:
    """What the parent process packed."""
    return pickle.loads(content)


class CannotHandOver(RunError):
    """An object that no other process can be given."""
