"""Named tensors in memory that several processes see. The memory has no name in any file system, so it needs
no room in ``/dev/shm`` and nothing of it is left when the last process is gone, however it went.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from proxyfl.core.machine import usable_memory
from proxyfl.core.state import Tensors

Layout = dict[str, Any]
"""Where each tensor lies: JSON, for the other side."""

ALIGNED = 64
"""Bytes at whose multiples tensors begin: a cache line."""

LARGE = 0.25
"""Share of the machine's memory from which tensors go to a nameless file on disk instead: such pages can be
dropped and read again, the others cannot.
"""


class SharedTensors:
    """One block of memory, written by its owner and read by those who are given ``fd``. An owner in another
    process than the one that made it is given ``fd``, too.
    """

    def __init__(self, fd: int = -1) -> None:
        self.fd = fd
        self._memory: mmap.mmap | None = None

    def write(self, tensors: Mapping[str, Tensor]) -> Layout:
        """Replace the content. No reader may still be using what was there."""
        layout = plan(tensors)
        if self.fd < 0:
            self.fd = _nameless(layout["size"])
        _make_room(self.fd, layout["size"])
        fill(self._mapped(layout["size"]), layout, tensors)
        return layout

    def copied(self, layout: Layout) -> Tensors:
        """What another process has written, as copies: it may write again at once."""
        return {name: value.clone() for name, value in view(self._mapped(layout["size"]), layout).items()}

    def close(self) -> None:
        self._memory = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _mapped(self, size: int) -> mmap.mmap:
        """The memory, mapped once for as long as it is large enough: mapping it anew costs ten times as much
        as copying a small network.
        """
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self.fd, size)
        return self._memory


def read(fd: int, layout: Layout) -> Tensors:
    """The tensors without a copy. What is written to them stays private to this process."""
    return view(mmap.mmap(fd, layout["size"], access=mmap.ACCESS_COPY), layout)


def view(memory: Any, layout: Layout) -> Tensors:
    """The tensors that lie in a buffer."""
    tensors = {}
    for name, kind, shape, start in layout["tensors"]:
        dtype, count = getattr(torch, kind), math.prod(shape)
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=start) if count else None
        tensors[name] = torch.empty(shape, dtype=dtype) if flat is None else flat.reshape(shape)
    return tensors


def fill(memory: Any, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors to their places in a buffer. When this returns, no tensor looks at it any more."""
    for name, value in view(memory, layout).items():
        value.copy_(tensors[name])


def plan(tensors: Mapping[str, Tensor]) -> Layout:
    """Where each tensor is to lie in a buffer."""
    places, end = [], 0
    for name, value in tensors.items():
        places.append([name, str(value.dtype).removeprefix("torch."), list(value.shape), end])
        end += -(-value.numel() * value.element_size() // ALIGNED) * ALIGNED
    return {"size": max(end, ALIGNED), "tensors": places}


def _make_room(fd: int, size: int) -> None:
    """Real room, where the system can: writing into a file without it would end the process."""
    if os.fstat(fd).st_size >= size:
        return
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def _nameless(size: int) -> int:
    if size < LARGE * usable_memory() and hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # some sandboxes have the call and forbid it
            return os.memfd_create("proxyfl")
    with tempfile.TemporaryFile(prefix="proxyfl-") as file:
        return os.dup(file.fileno())
