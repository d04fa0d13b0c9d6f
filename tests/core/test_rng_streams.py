"""Randomness is a value: literal draws, unrelated streams, no global generator touched."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch

from proxyfl.core.rng import SERVER, entropy, isolated, numpy_rng, rng


def test_entropy_is_a_hash_of_the_name() -> None:
    name = b"1/2/3/batches"
    assert entropy(1, 2, 3, "batches") == int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
    assert entropy(1, 2, 3, "batches") == 18050913799311572436
    assert entropy(7, 0, SERVER, "initialise") == 14250659236926553527


def test_first_draws() -> None:
    assert torch.randint(1000, (6,), generator=rng(1, 2, 3, "batches")).tolist() == [
        942,
        257,
        834,
        146,
        114,
        363,
    ]
    assert numpy_rng(1, 2, 3, "batches").integers(0, 1000, 6).tolist() == [21, 606, 977, 293, 164, 60]


def test_a_stream_is_a_pure_function_of_its_name() -> None:
    first = rng(5, 1, 0, "x")
    torch.rand(100, generator=rng(5, 1, 0, "y"))
    torch.rand(100, generator=rng(5, 1, 0, "x"))
    assert torch.equal(torch.rand(8, generator=first), torch.rand(8, generator=rng(5, 1, 0, "x")))


def test_streams_differ_in_each_part_of_their_name() -> None:
    names = [(s, r, c, p) for s in (0, 1, 11) for r in (0, 1, 11) for c in (-1, 1, 11) for p in ("a", "b")]
    draws = {tuple(torch.rand(4, generator=rng(*name)).tolist()) for name in names}
    assert len(draws) == len(names)


def test_isolated_gives_code_a_stream_of_its_own_and_puts_the_global_state_back() -> None:
    before = torch.random.get_rng_state()
    with isolated(1, 2, 3, "layers"):
        inside = torch.rand(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(17)
    with isolated(1, 2, 3, "layers"):
        assert torch.equal(torch.rand(4), inside)


def test_isolated_puts_the_state_back_when_the_code_fails() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError), isolated(1, 2, 3, "layers"):
        torch.rand(4).reshape(5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_no_global_generator_is_used() -> None:
    states = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    torch.rand(3, generator=rng(1, 1, 1, "a"))
    numpy_rng(1, 1, 1, "a").random(3)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]
