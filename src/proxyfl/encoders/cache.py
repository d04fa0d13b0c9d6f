"""Features on disk: one file of float16 numbers, filled block by block.

What is finished is noted, with its checksum, after it is on the disk. After a kill only the blocks that are
missing are computed; one that is damaged counts as missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.files import append_bytes, begins_with
from proxyfl.core.locks import held
from proxyfl.core.text import in_words

BLOCK = 256
"""Samples that are encoded and noted together."""
LIMIT = 20.0
"""Gigabytes that the features of a data set may take, unless the environment says otherwise."""
VARIABLE = "PROXYFL_FEATURES_GB"
PATIENCE = 24 * 3600.0
"""Seconds to wait for another process that computes the same features."""

Compute = Callable[[int], Tensor]
"""Number of a block → its features."""


class Cache:
    """Features of shape (samples, views, d) below a folder of their own."""

    def __init__(self, folder: Path, shape: tuple[int, int, int]) -> None:
        self.folder, self.shape = folder, shape
        self.data, self.log = folder / "features.npy", folder / "blocks.jsonl"

    @property
    def blocks(self) -> int:
        return -(-self.shape[0] // BLOCK)

    @property
    def size(self) -> int:
        return len(self._header) + int(np.prod(self.shape, dtype=np.int64)) * 2

    @cached_property
    def _header(self) -> bytes:
        """How the file begins."""
        text = io.BytesIO()
        header = {"descr": "<f2", "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(text, header)
        return text.getvalue()

    def fill(self, compute: Compute, done: Callable[[int], None]) -> int:
        """Compute what is missing; how many samples that were. ``done`` gets each block's samples."""
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = f"{self.folder} is being filled by another process"
        with held(self.folder / ".lock", taken, remove=False, patience=PATIENCE):
            missing = self._missing()
            present = self.shape[0] - sum(map(self._samples, missing))
            done(present)
            for block in missing:
                self._write(block, compute(block))
                done(self._samples(block))
        return self.shape[0] - present

    def open(self) -> Tensor:
        """The features, read as they are needed; writing to them changes nothing on the disk."""
        if not begins_with(self.data, self._header):  # looked at first: numpy would parse any Python literal
            raise DataError(f"{self.data} is damaged; remove {self.folder} and it will be rebuilt")
        return torch.from_numpy(np.lib.format.open_memmap(self.data, mode="c"))

    def rows(self, block: int) -> slice:
        """The samples of a block."""
        return slice(block * BLOCK, (block + 1) * BLOCK)

    def _samples(self, block: int) -> int:
        return min(BLOCK, self.shape[0] - block * BLOCK)

    def _place(self, block: int) -> tuple[int, int]:
        """Where a block begins in the file, and its length."""
        row = self.shape[1] * self.shape[2] * 2
        return len(self._header) + block * BLOCK * row, self._samples(block) * row

    def _missing(self) -> list[int]:
        if not self._begun():
            self.log.unlink(missing_ok=True)
            self.data.unlink(missing_ok=True)
            with self.data.open("wb") as file:
                file.write(self._header)
                file.truncate(self.size)
        noted = self._noted()
        with self.data.open("rb") as file:
            return [block for block in range(self.blocks) if not self._intact(file.fileno(), block, noted)]

    def _begun(self) -> bool:
        ordinary = self.data.is_file() and not self.data.is_symlink()
        return ordinary and self.data.stat().st_size == self.size and begins_with(self.data, self._header)

    def _intact(self, handle: int, block: int, noted: dict[int, str]) -> bool:
        if block not in noted:
            return False
        start, length = self._place(block)
        return hashlib.sha256(os.pread(handle, length, start)).hexdigest() == noted[block]

    def _noted(self) -> dict[int, str]:
        """Checksums of finished blocks; the later of two counts, and what a kill left of a line does not."""
        found = {}
        for line in self.log.read_bytes().split(b"\n") if self.log.is_file() else ():
            try:
                note = json.loads(line)
                found[int(note["block"])] = str(note["sha256"])
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def _write(self, block: int, features: Tensor) -> None:
        start, length = self._place(block)
        content = features.contiguous().numpy().tobytes()
        if features.dtype != torch.float16 or len(content) != length:
            raise DataError(
                f"features of shape {tuple(features.shape)} do not fit; all features of an "
                "encoder have one shape"
            )
        with self.data.open("r+b") as file:
            file.seek(start)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        note = {"block": block, "sha256": hashlib.sha256(content).hexdigest()}
        append_bytes(self.log, b"\n" + json.dumps(note).encode())


def require_room(caches: list[Cache], root: Path) -> None:
    """Refuse features beyond the limit, or beyond what the disk has room for, before any is made."""
    needed = sum(cache.size for cache in caches)
    cure = "use fewer views (encoder.weak, encoder.strong) or fewer images (data.subset)"
    limit = _limit() * 1e9
    if needed > limit:
        raise ConfigError(
            f"the features need {in_words(needed)}, but {in_words(limit)} are allowed; "
            f"{cure}, or allow more gigabytes with {VARIABLE}"
        )
    root.mkdir(parents=True, exist_ok=True)
    used = sum(cache.data.stat().st_blocks * 512 for cache in caches if cache.data.is_file())
    free = shutil.disk_usage(root).free
    if needed - used > free:
        raise ConfigError(
            f"the features need {in_words(needed)}, but {root} has room for "
            f"{in_words(free)}; {cure}, or name another data folder (PROXYFL_DATA)"
        )


def _limit() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        return float(text) if text else LIMIT
    except ValueError:
        raise ConfigError(f"{VARIABLE} = {text!r} is not a number of gigabytes") from None
