"""The header of numpy's array files, read without trusting the file."""

from __future__ import annotations

import re
from typing import IO, Any

import numpy as np

LENGTH_BYTES = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}
"""How many bytes hold the length of the header, by the first eight of the file."""

LONGEST_HEADER = 10_000
PICKLED = "is pickled, which is not supported"
HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z][0-9]{0,9})', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:[0-9]{1,18}L?, ?)*(?:[0-9]{1,18}L?)?)\),? ?\} *\n?"
)
"""As numpy writes it for an array of plain numbers. Numpy's own reader would parse any Python literal."""


def read_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of the array whose file begins here; the stream then stands where its numbers begin."""
    bytes_of_length = LENGTH_BYTES.get(stream.read(8))
    if bytes_of_length is None:
        raise ValueError(f"{name} is not an array in numpy's format 1 or 2")
    length = int.from_bytes(stream.read(bytes_of_length), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"{name} has a header of {length:,} bytes, at most {LONGEST_HEADER:,} are read")
    found = HEADER.fullmatch(stream.read(length))
    if found is None:
        raise ValueError(f"{name} has a header that numpy does not write for plain numbers")
    try:
        dtype = np.dtype(found[1].decode())
    except TypeError:
        raise ValueError(f"{name} has the unknown type {found[1].decode()}") from None
    if dtype.hasobject:
        raise ValueError(f"{name} {PICKLED}: save names as text, with .astype(str)")
    return tuple(int(size) for size in re.findall(rb"[0-9]+", found[2])), dtype
