"""What this process may use of the machine: cores and memory, as affinity and container limits leave them."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
CPUINFO = Path("/proc/cpuinfo")

LIMITS = ("ONEDNN_", "DNNL_", "MKLDNN_", "ATEN_")
"""How the names of variables begin that change which instructions torch uses."""


def usable_cores() -> int:
    """The cores that this process may use; at least one."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _limit("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
    return cores


def usable_memory() -> int:
    """Bytes of memory that there are for this process; 8 GB where nobody knows."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = 8 << 30
    limit = _limit("memory.max")
    memory = min(memory, int(limit)) if limit.isdecimal() else memory
    return min(memory, _address_space() or memory)


def peak_memory() -> int:
    """The most bytes that this process ever held; 0 where nobody knows. The system's usual count
    (``ru_maxrss``) begins with what the process that started this one held, so it is asked last.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def _address_space() -> int:
    """What ``ulimit -v`` leaves; 0 where there is no limit."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if soft == resource.RLIM_INFINITY else soft


def _limit(name: str) -> str:
    try:
        return (CGROUP / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def processor() -> list[str]:
    """What :func:`has_bf16` follows from, read without torch: the processor's instructions, where the system
    lists them, and variables that have torch leave out some. Elsewhere the machine's name stands for them.
    """
    listed = ""
    with contextlib.suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        listed = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    limits = sorted(f"{key}={value}" for key, value in os.environ.items() if key.startswith(LIMITS))
    return [platform.system(), platform.machine(), listed or platform.node(), *limits]


def has_bf16() -> bool:
    """Whether the processor has instructions for bf16. On x86 torch also calls it supported where it has to
    compute it with those for fp32, at half their speed.
    """
    import torch

    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    return bool(bf16_sets())


def bf16_sets() -> list[str]:
    """The processor's sets of instructions for bf16 on x86, as far as this version of torch knows them."""
    import torch

    questions = {"avx512_bf16": "_is_avx512_bf16_supported", "amx_bf16": "_is_amx_tile_supported"}
    return [name for name, question in questions.items() if getattr(torch.cpu, question, bool)()]
