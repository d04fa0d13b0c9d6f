"""Which version of this program is running."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@cache
def this_commit() -> str:
    """The commit of the checkout that this program runs from, marked where its files have changed since.
    Elsewhere the version.
    """
    try:
        top = _git("rev-parse", "--show-toplevel")
        if top and Path(top).resolve() / "src" / "proxyfl" == PACKAGE:
            changed = _git("status", "--porcelain", "--", str(PACKAGE))
            return _git("rev-parse", "--short", "HEAD") + ("-changed" if changed else "")
    except OSError:
        pass
    return metadata.version("proxyfl")


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
