"""Randomness is a value: every draw comes from a stream named by what it is for.

A stream is a pure function of (seed, round, client, purpose), so a resumed run, another number of
workers or another engine draws the same numbers. Nothing here leaves a global generator changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

SERVER = -1
"""The ``client`` of a stream that belongs to the server."""


def entropy(seed: int, round: int, client: int, purpose: str) -> int:
    """64 bits for a stream; a hash, so that neighbouring rounds and clients are unrelated.

    Torch's generator on the CPU takes the low 32 of them: plenty to tell streams apart, too few to be secret.
    """
    name = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little")


def rng(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """The torch stream for one purpose. It draws on the CPU, so every device sees the same numbers."""
    return torch.Generator().manual_seed(entropy(seed, round, client, purpose))


def numpy_rng(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """The same stream idea for numpy."""
    return np.random.default_rng(entropy(seed, round, client, purpose))


@contextmanager
def isolated(seed: int, round: int, client: int, purpose: str) -> Iterator[None]:
    """Give code that insists on torch's global generator (layer initialisation, dropout) a stream of its own.

    The global state is put back afterwards.
    """
    chosen = entropy(seed, round, client, purpose)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed writes down a stack trace for every backend that is not there.
        torch.default_generator.manual_seed(chosen)
        if devices:
            torch.cuda.manual_seed_all(chosen)
        if torch.backends.mps.is_available():
            torch.mps.manual_seed(chosen)
        yield
