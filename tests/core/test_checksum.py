"""Files that carry their own hash: nothing that was changed is read, whatever was changed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from proxyfl.core.checksum import is_intact, read_foreign, read_verified, write_tensors, write_verified
from proxyfl.core.errors import RunError

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_verified(tmp_path / "x.safetensors", TENSORS, {"proxyfl": '{"classes": ["é"]}'})
    return tmp_path / "x.safetensors"


def test_tensors_and_metadata_come_back(file: Path) -> None:
    tensors, metadata = read_verified(file)
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert metadata["proxyfl"] == '{"classes": ["é"]}'
    assert is_intact(file)


def test_any_reader_of_the_format_reads_it(file: Path) -> None:
    assert torch.equal(load_file(file)["weight"], TENSORS["weight"])
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata()["proxyfl"] == '{"classes": ["é"]}'


def test_the_same_tensors_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    write_verified(again, dict(reversed(TENSORS.items())), {"proxyfl": '{"classes": ["é"]}'})
    assert again.read_bytes() == file.read_bytes()


def test_every_flip_and_every_cut_is_noticed(file: Path) -> None:
    good = file.read_bytes()
    for place in range(len(good)):
        for change in (0x01, 0x20, 0xFF):
            file.write_bytes(good[:place] + bytes([good[place] ^ change]) + good[place + 1 :])
            assert not is_intact(file), (place, change)
        file.write_bytes(good[:place])
        assert not is_intact(file), place
    file.write_bytes(good + b"\0")
    assert not is_intact(file)
    file.write_bytes(good)
    assert is_intact(file)


def test_what_is_wrong_is_said_in_one_line(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(RunError, match=r"x\.safetensors is damaged: .*checksum"):
        read_verified(file)
    nested = b"[" * 100_000
    for content in (b"", b"text", struct.pack("<Q", len(nested)) + nested, struct.pack("<Q", 2) + b"[]"):
        file.write_bytes(content)
        with pytest.raises(RunError, match="is damaged") as caught:
            read_verified(file)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError):
        read_verified(tmp_path / "none")


def test_files_of_other_programs_are_read_where_that_is_asked_for(tmp_path: Path) -> None:
    write_tensors(tmp_path / "plain", TENSORS, {"format": "pt"})
    assert torch.equal(read_foreign(tmp_path / "plain")["weight"], TENSORS["weight"])
    assert not is_intact(tmp_path / "plain")
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(RunError, match="not a safetensors"):
        read_foreign(tmp_path / "text")
