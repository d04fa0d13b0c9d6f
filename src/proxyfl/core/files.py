"""Writing files so that a crash leaves the old one or the new one, never half of either."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor


def write_bytes(path: Path, content: bytes) -> None:
    """Write aside, flush to the disk, then rename."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.aside")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file, written like :func:`write_bytes`."""
    write_bytes(path, tensor_bytes(tensors, metadata))


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named tensors as safetensors."""
    # Copies: the format refuses tensors that share memory, which a method's state may well do.
    plain = {
        name: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    return save(plain, dict(metadata) if metadata else None)


def append_bytes(path: Path, content: bytes) -> None:
    """Add to the end and flush to the disk. A crash may leave a part: who reads must know how much counts."""
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def clear_asides(folder: Path) -> None:
    """Remove what processes that are gone were writing when they ended."""
    for stale in folder.glob(".*.aside"):
        if stale.is_file() and not _is_running(stale.name.split(".")[-2]):
            stale.unlink(missing_ok=True)


def _is_running(pid: str) -> bool:
    if not pid.isdecimal() or os.name != "posix":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return int(pid) != os.getpid()


def sync_folder(folder: Path) -> None:
    """Make a rename inside the folder durable, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path, limit: int | None = None) -> str:
    """SHA-256 of a file, or of its first ``limit`` bytes."""
    digest = hashlib.sha256()
    left = limit if limit is not None else path.stat().st_size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
