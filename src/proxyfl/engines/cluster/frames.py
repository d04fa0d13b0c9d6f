"""A header and tensors as one piece of bytes, and many tensors as one block: what crosses between nodes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.torch import load
from torch import Tensor

from proxyfl.core.state import Tensors
from proxyfl.engines.serialization import Header
from proxyfl.engines.shared import Layout, fill, plan, view
from proxyfl.engines.worker import encoded

LENGTH = 8
"""Bytes that say how long the header is."""

Block = np.ndarray[Any, np.dtype[np.uint8]]
"""Tensors behind each other, as their layout says; nodes map it instead of copying it."""


def framed(header: Header, tensors: Tensors) -> bytes:
    words, content = encoded(header, tensors)
    return len(words).to_bytes(LENGTH, "little") + words + content


def unframed(frame: bytes) -> tuple[Header, Tensors]:
    end = LENGTH + int.from_bytes(frame[:LENGTH], "little")
    return json.loads(frame[LENGTH:end]), load(frame[end:])


def block_of(tensors: Mapping[str, Tensor]) -> tuple[Layout, Block]:
    layout = plan(tensors)
    block = np.empty(layout["size"], dtype=np.uint8)
    fill(block, layout, tensors)
    return layout, block


def tensors_in(block: Block, layout: Layout) -> Tensors:
    """The tensors without a copy; nobody may write to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given (buffer|NumPy array) is not writable")
        return view(block, layout)
