"""An error on its way from a child process to its parent, as JSON."""

from __future__ import annotations

import traceback
from typing import Any

from proxyfl.core import errors

RemoteError = dict[str, Any]


def describe(error: Exception) -> RemoteError:
    """To be called where the error is caught."""
    remote: RemoteError = {"class": "", "text": str(error), "detail": traceback.format_exc()}
    for kind in type(error).__mro__:
        if kind is OSError:
            file = None if error.filename is None else str(error.filename)  # type: ignore[attr-defined]
            numbered = error.errno is not None  # type: ignore[attr-defined]
            remote["os"] = [error.errno, error.strerror, file] if numbered else [str(error)]  # type: ignore[attr-defined]
        if kind is OSError or kind is getattr(errors, kind.__name__, None):
            remote["class"] = kind.__name__
            break
    return remote


def raised(remote: RemoteError) -> Exception:
    """The error again, as the class it was where the program treats that class specially."""
    if remote["class"] == "OSError":
        return OSError(*remote["os"])
    known: type[Exception] | None = getattr(errors, remote["class"], None)
    return known(remote["text"]) if known else RuntimeError(f"a worker failed:\n{remote['detail']}")
