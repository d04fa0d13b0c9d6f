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
from proxyfl.core.machine import bf16_sets

PACKAGE = Path(__file__).resolve().parents[1]

NUMERICS = 2
"""Raised with every change of this program that changes the bits of a result."""

LIMITS = (
    "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR",
)  # fmt: skip
"""Variables that make torch's libraries use other kernels; torch itself reports ``ATEN_CPU_CAPABILITY``."""

CUDA, GPU, BF16 = "cuda", "GPU", "bf16"


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


def instructions(compute: ComputeSettings) -> str:
    """What the last bits of results depend on when they are computed so: the processor's instructions, in
    bf16 those for bf16 too, the environment's limits on them, and the GPU.
    """
    import torch

    found = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    if part := _part(compute):
        found.append(f"{part}={_bf16() if part == BF16 else _gpu(compute.device)}")
    limits = {name: os.environ.get(name, "").upper() for name in LIMITS}
    found += [f"{name}={value}" for name, value in limits.items() if _is_limit(name, value, _part(compute))]
    return " ".join(found)


def _part(compute: ComputeSettings) -> str:
    """What the instructions have to name beside the processor's kind; older runs did not."""
    if compute.device.startswith(CUDA):
        return GPU
    return "" if compute.dtype == "fp32" else BF16


def _bf16() -> str:
    """The instructions for bf16: with each set of them, products are summed in another order."""
    import torch

    if platform.machine().lower() in ("x86_64", "amd64"):
        return "+".join(bf16_sets()) or "emulated"
    return "native" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "emulated"


def _gpu(device: str) -> str:
    import torch

    try:
        return torch.cuda.get_device_name(device)
    except (AssertionError, RuntimeError):  # no such GPU, or a torch without any
        return "none"


def _is_limit(name: str, value: str, part: str) -> bool:
    """Whether a variable changes bits. In fp32, kernels for AVX-512 give equal bits at every level."""
    if value in ("", "DEFAULT", "ALL"):
        return False
    return part == BF16 or not (name.endswith("_MAX_CPU_ISA") and value.startswith("AVX512_CORE"))


def other_arithmetic(recorded: Mapping[str, Any], compute: ComputeSettings) -> str:
    """Where results may differ in their last bits from those of the machine that was recorded, the reason."""
    now = {"numerics": NUMERICS, "torch": metadata.version("torch"), "processor": instructions(compute)}
    versions, part = recorded.get("versions"), _part(compute)
    processor = str(recorded.get("instructions", "" if part else now["processor"]))
    if part and f"{part}=" not in processor:
        processor = f"{processor} {part}=not-recorded".strip()
    then = {
        "numerics": recorded.get("numerics", 1),  # runs of before it was counted
        "torch": versions.get("torch", now["torch"]) if isinstance(versions, Mapping) else now["torch"],
        "processor": processor,
    }
    return ", ".join(f"{name} {then[name]}, now {now[name]}" for name in now if then[name] != now[name])


def describe_machine(compute: ComputeSettings, *packages: str) -> dict[str, Any]:
    """Versions, threads and kind of machine: what a reader needs to trust or repeat a run."""
    names = ("proxyfl", "torch", "numpy", "safetensors", *packages)
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "commit": this_commit(),
        "numerics": NUMERICS,
        "instructions": instructions(compute),
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
