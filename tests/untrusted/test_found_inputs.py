"""Inputs that once broke a reader, found by fuzzing or by hand. Each is refused or read ever since."""

from __future__ import annotations

import base64
import shutil
import tempfile
from pathlib import Path

import pytest
from readers import READERS

FOUND: dict[str, tuple[str, bytes]] = {
    # zipfile asks for the last letter of a member's name, and this one has none
    "a member without a name": (
        "zip",
        base64.b64decode(
            "UEsDBBQAAAAIAGcwcF3RZVh8CAAAAJYAAAAFAAAAdG9wL2FLTEpOHHwIAFBLAwQUAAAACABnMHBd30FQ4AkIAABYAg"
            "AABwEAAABvcC9iL2NLSRkFo4D6AABQSwECFAMUAAAACABnMHBd0WVLAwQUAAAACABnMHBd30FQ4AkIAABYAgAABwEA"
            "AABvcC9iL2MCFAMUAAAACABnMHBd30FQ4AkAAABYAgAABwAAAAAAAAAAAAAAgAErAAAAdG9wL2IvY1BLBQYAAAAAAg"
            "ACAGgAAABZACAAAAA="
        ),
    ),
    # more digits than Python turns into a number
    "a long number": ("config", b"seed = " + b"9" * 5000),
    "a number beyond any float": ("config", b"[train]\nlr = " + b"9" * 400),
    "lists in lists": ("config", b"a = " + b"[" * 5000),
    "tables in tables": ("config", b"a" + b".a" * 5000 + b" = 1"),
    "a tab in a message": ("assignment", b"m..0\tau=\xb0.\xe0\xe0\xe0"),
    "a deep value": ("assignment", b"method.tau=" + b"[" * 5000),
    "a deep key": ("assignment", b"a" + b".a" * 5000 + b"=1"),
    "records in records": ("json_lines", b"[" * 100_000 + b"\n"),
    "a line without an end of digits": ("json_lines", b'{"round": ' + b"9" * 5000 + b"}\n"),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_does_not_break_the_reader_again(name: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="found-"))
    try:
        READERS[FOUND[name][0]](FOUND[name][1], folder)
    finally:
        shutil.rmtree(folder)
