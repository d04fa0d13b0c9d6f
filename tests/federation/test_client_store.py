"""What is kept per client: versions, what a crash leaves, what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from proxyfl.core.errors import RunError
from proxyfl.federation.client_store import ClientStore


def value(number: float) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor([number])}


def rounds(store: ClientStore, folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def test_round_zero_is_empty(tmp_path: Path) -> None:
    assert ClientStore(tmp_path / "none").load(3, 0) == {}
    assert not (tmp_path / "none").exists()


def test_the_newest_two_versions_are_kept(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for round in (2, 5, 9):
        store.save(3, round, value(round))
    assert rounds(store, tmp_path) == ["round-00000005.safetensors", "round-00000009.safetensors"]
    assert store.load(3, 9)["x"].item() == 9
    assert store.load(3, 5)["x"].item() == 5


def test_more_versions_can_be_kept(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, versions=4)
    for round in range(1, 8):
        store.save(3, round, value(round))
    assert [store.load(3, round)["x"].item() for round in (4, 5, 6, 7)] == [4, 5, 6, 7]
    with pytest.raises(RunError):
        store.load(3, 3)


def test_a_round_that_runs_twice_starts_from_the_same_version(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 1, value(1))
    store.save(3, 2, value(2))  # then the server dies before its checkpoint of round 2
    assert store.load(3, 1)["x"].item() == 1
    store.save(3, 2, value(2.5))
    assert store.load(3, 2)["x"].item() == 2.5
    assert store.load(3, 1)["x"].item() == 1


def test_a_version_that_is_gone(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 2, value(2))
    with pytest.raises(RunError, match=r"client 3 from round 1 is gone: .*missing"):
        store.load(3, 1)
    with pytest.raises(RunError, match="client 4 from round 2 is gone"):
        store.load(4, 2)


def test_a_version_that_is_damaged(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 2, value(2))
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"nonsense")
    with pytest.raises(RunError, match="client 3 from round 2 is damaged"):
        store.load(3, 2)


def test_the_newest_not_younger_than_asked(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    assert store.newest(3, 8) == {}
    store.save(3, 4, value(4))
    store.save(3, 7, value(7))
    assert store.newest(3, 3) == {}
    assert store.newest(3, 6)["x"].item() == 4
    assert store.newest(3, 7)["x"].item() == 7
    assert store.newest(3, 99)["x"].item() == 7


def test_clients_do_not_meet(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for client in (0, 1, 999, 1000, 123_456):
        store.save(client, 1, value(client))
    assert [store.load(client, 1)["x"].item() for client in (0, 1, 999, 1000, 123_456)] == [
        0,
        1,
        999,
        1000,
        123_456,
    ]
    assert len(list(tmp_path.iterdir())) == 3  # a thousand clients share a folder


def test_half_a_file_is_no_version(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 1, value(1))
    place = next(tmp_path.rglob("*.safetensors")).parent
    (place / ".round-00000002.safetensors.77.aside").write_bytes(b"half")
    assert store.newest(3, 5)["x"].item() == 1
    store.save(3, 3, value(3))
    assert store.load(3, 1)["x"].item() == 1


def test_the_version_that_counts_stays_while_later_ones_are_refused(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 1, value(1))
    for round in (2, 3, 4):  # each trained from version 1, none accepted by the server
        assert store.load(3, 1)["x"].item() == 1
        store.save(3, round, value(round), base=1)
    assert store.load(3, 1)["x"].item() == 1
    store.save(3, 5, value(5), base=4)
    assert rounds(store, tmp_path) == ["round-00000004.safetensors", "round-00000005.safetensors"]


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    store.save(3, 2, value(2))
    file = next(tmp_path.rglob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"A")
    with pytest.raises(RunError, match="client 3 from round 2 is damaged"):
        store.load(3, 2)


def test_the_state_of_another_client_or_round_is_not_taken(tmp_path: Path) -> None:
    store = ClientStore(tmp_path)
    for client, round in ((3, 2), (4, 2), (3, 1)):
        store.save(client, round, value(round))
    files = {(file.parent.name[-1], file.stem[-1]): file for file in tmp_path.rglob("*.safetensors")}
    for other in (("4", "2"), ("3", "1")):
        files["3", "2"].write_bytes(files[other].read_bytes())
        with pytest.raises(RunError, match=r"from round 2 is damaged: .*another client"):
            store.load(3, 2)


def test_what_a_dead_process_was_writing_is_removed_that_of_a_living_process_is_not(
    tmp_path: Path,
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    store = ClientStore(tmp_path)
    store.save(3, 1, value(1))
    place = next(tmp_path.rglob("*.safetensors")).parent
    left = [place / f".round-00000002.safetensors.{pid}.aside" for pid in (dead.pid, os.getppid())]
    for file in left:
        file.write_bytes(b"half")
    store.save(3, 2, value(2))
    assert [file.exists() for file in left] == [False, True]
