"""Every reader, given bytes that a stranger could have written: a result, or one line of words."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS

EXAMPLES = 12
LONG = 600


@functools.cache
def sample(name: str) -> bytes:
    return READERS[name].sample()


def try_it(name: str, content: bytes) -> object:
    folder = Path(tempfile.mkdtemp(prefix="untrusted-"))
    try:
        return READERS[name](content, folder)
    finally:
        shutil.rmtree(folder)


@st.composite
def mutated(draw: st.DrawFn, sample: bytes) -> bytes:
    """A valid file with bytes changed, cut out, doubled or put in, and perhaps an end."""
    content = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        length = draw(st.integers(0, 16))
        match draw(st.sampled_from(("flip", "set", "cut", "double", "insert", "end"))):
            case "flip":
                content[place : place + 1] = bytes(
                    b ^ (1 << draw(st.integers(0, 7))) for b in content[place : place + 1]
                )
            case "set":
                content[place : place + length] = draw(st.sampled_from((b"\0", b"\xff", b"9"))) * length
            case "cut":
                del content[place : place + length]
            case "double":
                content[place:place] = content[place : place + length]
            case "insert":
                content[place:place] = draw(st.binary(max_size=16))
            case "end":
                del content[place:]
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_the_valid_sample_is_read(name: str) -> None:
    assert try_it(name, sample(name)) is not None


def property_test(examples: int):
    quiet = settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )

    @quiet
    @given(data=st.data())
    def check(name: str, data: st.DataObject) -> None:
        valid = sample(name)
        try_it(name, data.draw(st.one_of(mutated(valid), mutated(valid), st.binary(max_size=300))))

    return check


@pytest.mark.parametrize("name", READERS)
def test_damaged_or_foreign_bytes(name: str) -> None:
    property_test(EXAMPLES)(name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", READERS)
def test_damaged_or_foreign_bytes_for_long(name: str) -> None:
    property_test(int(os.environ.get("PROXYFL_EXAMPLES", LONG)))(name)


@pytest.mark.parametrize("name", READERS)
def test_nothing_at_all_and_the_wrong_kind_of_file(name: str) -> None:
    for content in (
        b"",
        b"\0" * 4096,
        b"\xff" * 999,
        *(sample(other) for other in ("npz", "tar", "svhn")),
    ):
        try_it(name, content)
