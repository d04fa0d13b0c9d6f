"""Which version of this program is running."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from proxyfl.core.config import ComputeSettings

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


def describe_machine(compute: ComputeSettings, *packages: str) -> dict[str, Any]:
    """Versions, threads and kind of machine: what a reader needs to trust or repeat a run."""
    names = ("proxyfl", "torch", "numpy", "safetensors", *packages)
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "commit": this_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": compute.threads,
        "dtype": compute.dtype,
        "device": compute.device,
    }


def _git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
