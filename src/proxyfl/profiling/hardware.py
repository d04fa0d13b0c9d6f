"""What the machine can do, to compare a network with."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from proxyfl.core import machine

PEAK_SECONDS = 1.0


def clock(device: torch.device) -> Callable[[], float]:
    """The time, after everything that was asked of the device is done."""
    if device.type not in ("cuda", "mps"):
        return time.perf_counter
    wait = torch.cuda.synchronize if device.type == "cuda" else torch.mps.synchronize

    def read() -> float:
        wait()
        return time.perf_counter()

    return read


def matrix_peak(dtype: str, device: torch.device, seconds: float = PEAK_SECONDS) -> float:
    """GFLOP/s of a plain matrix product with the threads that are set: the best of many, of three sizes."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float32
    read, generator = clock(device), torch.Generator().manual_seed(0)
    best, end = 0.0, time.perf_counter() + seconds
    # Small products slip through between the turns of other programs, large ones fill a GPU.
    sizes = (512, 1024, 2048) if device.type == "cpu" else (2048, 4096, 8192)
    for place, size in enumerate(sizes):
        a = torch.randn(size, size, generator=generator).to(device, kind)
        for turn in range(100):
            began = read()
            if (place or turn > 1) and began > end - seconds * (2 - place) / 3:
                break
            torch.mm(a, a)
            best = max(best, 2e-9 * size**3 / (read() - began))
    return best


def peak_memory(device: torch.device) -> int:
    """Bytes: of this process so far, or, on a GPU, of tensors there since the count was reset."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else machine.peak_memory()
