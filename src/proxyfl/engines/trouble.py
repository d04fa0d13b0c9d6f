"""An error on its way from a child process to its parent, as JSON."""

from __future__ import annotations

import traceback
from typing import Any

from proxyfl.core import errors

Trouble = dict[str, Any]


def describe(error: Exception) -> Trouble:
    """To be called where the error is caught."""
    trouble: Trouble = {"class": "", "text": str(error), "detail": traceback.format_exc()}
    for kind in type(error).__mro__:
        if kind is OSError:
            file = None if error.filename is None else str(error.filename)  # type: ignore[attr-defined]
            numbered = error.errno is not None  # type: ignore[attr-defined]
            trouble["os"] = [error.errno, error.strerror, file] if numbered else [str(error)]  # type: ignore[attr-defined]
        if kind is OSError or kind is getattr(errors, kind.__name__, None):
            trouble["class"] = kind.__name__
            break
    return trouble


def raised(trouble: Trouble) -> Exception:
    """The error again, as the class it was where the program treats that class specially."""
    if trouble["class"] == "OSError":
        return OSError(*trouble["os"])
    known: type[Exception] | None = getattr(errors, trouble["class"], None)
    return known(trouble["text"]) if known else RuntimeError(f"a worker failed:\n{trouble['detail']}")
