"""Files are the old or the new, never half of either."""

from __future__ import annotations

import errno
import hashlib
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from proxyfl.core.checksum import write_tensors
from proxyfl.core.files import sha256, write_bytes


def test_content_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "x.bin"
    write_bytes(target, b"old")
    write_bytes(target, b"new")
    assert target.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["x.bin"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    target = tmp_path / "x.bin"
    write_bytes(target, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(target, b"new")
    assert target.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.bin"]


def test_content_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = import_module(os.name).fsync, Path.replace  # the real one: tests have another
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (order.append("rename"), replace(self, to))[1])
    write_bytes(tmp_path / "x", b"1")
    assert order == ["fsync", "rename", "fsync"]  # the last one is the folder's


def test_tensors_with_metadata(tmp_path: Path) -> None:
    target = tmp_path / "t.safetensors"
    wide = torch.arange(12.0).reshape(3, 4)
    write_tensors(target, {"t": wide.T, "grad": torch.ones(1, requires_grad=True)}, {"a": "b"})
    back = load_file(target)
    assert torch.equal(back["t"], wide.T)
    assert not back["grad"].requires_grad
    with safe_open(target, framework="pt") as file:
        assert file.metadata() == {"a": "b"}


def test_tensors_that_share_memory_are_written_apart(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    write_tensors(tmp_path / "t.safetensors", {"a": base, "b": base, "c": base[1:3]})
    back = load_file(tmp_path / "t.safetensors")
    assert torch.equal(back["a"], base)
    assert torch.equal(back["b"], base)
    assert back["c"].tolist() == [1.0, 2.0]


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.int64)}
    write_tensors(tmp_path / "1", tensors)
    write_tensors(tmp_path / "2", dict(reversed(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_sha256(tmp_path: Path) -> None:
    content = bytes(range(256)) * 9000
    file = tmp_path / "big"
    file.write_bytes(content)
    assert sha256(file) == hashlib.sha256(content).hexdigest()
