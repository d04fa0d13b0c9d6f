"""State as named tensors: nothing is lost on the way to a file and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from proxyfl.core.checksum import write_tensors
from proxyfl.core.state import (
    LONGEST_DETAIL,
    LONGEST_REASON,
    Failure,
    ServerState,
    Versions,
    content_hash,
    namespace,
    size_in_bytes,
    within,
)


def example() -> ServerState:
    return ServerState(
        round=12,
        weights={
            "conv.weight": torch.randn(2, 3),
            "norm.steps": torch.tensor(7),
            "half": torch.ones(2).bfloat16(),
        },
        extras={"prior/classes": torch.tensor([0.25, 0.75]), "m/flags": torch.tensor([True, False])},
        versions=Versions().after([5], 11).after([2], 12),
        carry={"conv.weight": torch.zeros(2, 3)},
    )


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value.dtype == b[name].dtype, name
        assert value.shape == b[name].shape, name
        assert torch.equal(value, b[name]), name


def test_names_say_where_a_tensor_belongs() -> None:
    assert set(example().to_tensors()) == {
        "weights/conv.weight", "weights/norm.steps", "weights/half", "extras/prior/classes", "extras/m/flags",
        "carry/conv.weight", "round", "versions/clients", "versions/rounds",
    }  # fmt: skip


def test_state_survives_a_file(tmp_path: Path) -> None:
    state = example()
    write_tensors(tmp_path / "s.safetensors", state.to_tensors())
    back = ServerState.from_tensors(load_file(tmp_path / "s.safetensors"))
    assert (back.round, back.versions) == (12, {5: 11, 2: 12})
    for part in ("weights", "extras", "carry"):
        assert_equal(getattr(back, part), getattr(state, part))


def test_an_empty_state_survives(tmp_path: Path) -> None:
    write_tensors(tmp_path / "s.safetensors", ServerState(0, {}).to_tensors())
    assert ServerState.from_tensors(load_file(tmp_path / "s.safetensors")) == ServerState(0, {})


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text("ab/.", min_size=1, max_size=6), st.integers(0, 9), max_size=6))
def test_namespace_and_within_are_inverse(sizes: dict[str, int]) -> None:
    tensors = {name: torch.arange(size) for name, size in sizes.items()}
    assert namespace(within("part", tensors), "part") == tensors
    assert namespace(within("part", tensors), "par") == {}


def test_namespace_wants_the_whole_first_word() -> None:
    tensors = {"prior/classes": torch.ones(1), "priority/x": torch.ones(1), "prior": torch.ones(1)}
    assert list(namespace(tensors, "prior")) == ["classes"]


def test_size_in_bytes() -> None:
    tensors = {"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.int64), "c": torch.zeros(2).bfloat16()}
    assert size_in_bytes(tensors) == 3 * 4 * 4 + 5 * 8 + 2 * 2


def test_versions_are_a_mapping_of_the_newest_rounds() -> None:
    first = Versions().after([5, 2, 90], 1)
    second = first.after([2, 7], 3)
    assert first == {2: 1, 5: 1, 90: 1}
    assert second == {2: 3, 5: 1, 7: 3, 90: 1}
    assert list(second) == [2, 5, 7, 90]
    assert (second[90], second.get(6, 0), second.get(91, 0), len(second)) == (1, 0, 0, 4)
    assert second.after([], 4) == second
    state = ServerState(3, {}, versions=second)
    assert ServerState.from_tensors(state.to_tensors()).versions == second


def test_what_a_failed_client_said_stays_short() -> None:
    failure = Failure(3, 1, "why " * 1000, "Traceback\n" + "x" * 50_000 + "\nthe end")
    assert failure.reason == ("why " * 1000)[:LONGEST_REASON]
    assert len(failure.detail) == LONGEST_DETAIL
    assert failure.detail.endswith("\nthe end")
    assert Failure(3, 1, "short", "too").reason == "short"


def test_an_empty_tensor_has_a_hash_whatever_its_strides() -> None:
    strided = torch.from_numpy(np.zeros(0, dtype=np.int64))
    assert content_hash({"a": strided}) == content_hash({"a": torch.zeros(0, dtype=torch.int64)})
    assert content_hash({"a": strided}) != content_hash({"a": torch.zeros(0)})
