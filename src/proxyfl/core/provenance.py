"""Which version of this program is running, and what the last bits of its results depend on."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from proxyfl.core.config import ComputeSettings

PACKAGE = Path(__file__).resolve().parents[1]

NUMERICS = 1
"""Raised with every change of this program that changes the bits of a result."""


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


@cache
def source_hash() -> str:
    """Of every source file, presets and protocols included: the same in a checkout and in an installed
    package.
    """
    digest = hashlib.sha256()
    files = [file for kind in ("*.py", "*.toml") for file in PACKAGE.rglob(kind) if file.is_file()]
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def instructions() -> str:
    """The instructions of the processor that results depend on to the last bit."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def other_arithmetic(recorded: Mapping[str, Any]) -> str:
    """Where results may differ in their last bits from those of the machine that was recorded, the reason."""
    now = {"numerics": NUMERICS, "torch": metadata.version("torch"), "processor": instructions()}
    versions = recorded.get("versions")
    then = {
        "numerics": recorded.get("numerics", 1),  # runs of before it was counted
        "torch": versions.get("torch", now["torch"]) if isinstance(versions, Mapping) else now["torch"],
        "processor": recorded.get("instructions", now["processor"]),
    }
    return ", ".join(f"{name} {then[name]}, now {now[name]}" for name in now if then[name] != now[name])


def describe_machine(compute: ComputeSettings, *packages: str) -> dict[str, Any]:
    """Versions, threads and kind of machine: what a reader needs to trust or repeat a run."""
    names = ("proxyfl", "torch", "numpy", "safetensors", *packages)
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "commit": this_commit(),
        "numerics": NUMERICS,
        "instructions": instructions(),
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
