"""Safetensors files, and those that carry the SHA-256 of themselves: what does not match is never used.

The hash is the first entry of the header's metadata, at a place that never changes, and is taken over the
whole file with zeros in that place. Any reader of safetensors reads such a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from proxyfl.core.errors import RunError
from proxyfl.core.files import read_bounded, write_bytes
from proxyfl.core.state import Tensors, detached

_LENGTH = 8
_MARK = b'{"__metadata__":{"sha256":"'
_START = _LENGTH + len(_MARK)
_STOP = _START + 64
_BLANK = b"0" * 64


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file, written like :func:`write_bytes`."""
    write_bytes(path, tensor_bytes(tensors, metadata))


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Named tensors as safetensors."""
    # Copies: the format refuses tensors that share memory, which a method's state may well do.
    return save(detached(tensors), dict(metadata) if metadata else None)


def write_verified(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """A safetensors file with its hash in it, written whole or not at all."""
    write_bytes(path, _with_checksum(tensor_bytes(tensors), dict(metadata or {})))


def read_verified(path: Path) -> tuple[Tensors, dict[str, str]]:
    """Tensors and metadata of a file that is intact; a missing one is a :class:`FileNotFoundError`."""
    content = read_bounded(path)
    try:
        metadata = _header(content).get("__metadata__", {})
        if content[_LENGTH:_START] != _MARK or _digest(content) != content[_START:_STOP]:
            raise RunError(f"{path} is damaged: it does not match its own checksum")
        return dict(load(content)), metadata
    except (SafetensorError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from error


def read_foreign(path: Path) -> Tensors:
    """Tensors of a file that another program may have written: verified where it carries a checksum."""
    content = read_bounded(path)
    if content[_LENGTH:_START] == _MARK:
        return read_verified(path)[0]
    try:
        return dict(load(content))
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} is not a safetensors file: {error}") from error


def is_intact(path: Path) -> bool:
    """Whether a file is there and matches its own hash."""
    try:
        read_verified(path)
    except (OSError, RunError):
        return False
    return True


def _with_checksum(plain: bytes, metadata: dict[str, str]) -> bytes:
    entries = _header(plain)
    data = plain[_LENGTH + int.from_bytes(plain[:_LENGTH], "little") :]
    header = {"__metadata__": {"sha256": _BLANK.decode(), **metadata}, **entries}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    content = len(text).to_bytes(_LENGTH, "little") + text + data
    return content[:_START] + _digest(content) + content[_STOP:]


def _header(content: bytes) -> dict[str, dict[str, str]]:
    length = int.from_bytes(content[:_LENGTH], "little")
    found: dict[str, dict[str, str]] = json.loads(content[_LENGTH : _LENGTH + length])
    return found


def _digest(content: bytes) -> bytes:
    view = memoryview(content)
    digest = hashlib.sha256(view[:_START])
    digest.update(_BLANK)
    digest.update(view[_STOP:])
    return digest.hexdigest().encode()
