"""Reads the original CIFAR batches, which are pickles, without letting a pickle do anything.

The standard library's disassembler lists the instructions, and the few that build numbers, strings, lists,
dicts, tuples and uint8 arrays are followed here. Names are never imported: the four that the pickle of an
array needs stay names, and any other ends the reading. Memory is bounded by the length of the file.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 400 << 20
MAX_DIMENSIONS = 4
MAX_INSTRUCTIONS = 2_000_000  # seven times those of the longest original, the training file of CIFAR-100

ARRAY, DTYPE, ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
REBUILD = frozenset({"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"})
PERMITTED = REBUILD | {ARRAY, DTYPE, ENCODE}


class Refused(ValueError):
    """The file is a pickle, but asks for something that no CIFAR batch contains."""


class Name:
    """A name in a pickle. It leads nowhere."""

    def __init__(self, text: str) -> None:
        if text not in PERMITTED:
            raise Refused(f"it asks for {text[:80]!r}, which no CIFAR batch does")
        self.text = text


class Bytes:
    """The dtype uint8."""


class Array:
    """An array, first announced, then filled."""

    def __init__(self) -> None:
        self.value: np.ndarray[Any, Any] | None = None


class Reader:
    """A stack machine for the permitted instructions."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.budget = len(data)
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(self.data))):
            if count > MAX_INSTRUCTIONS:
                raise Refused("it has more instructions than any CIFAR batch")
            if opcode.name == "STOP":
                return self.stack.pop()
            follow = INSTRUCTIONS.get(opcode.name)
            if follow is None:
                raise Refused(f"it has the instruction {opcode.name}, which no CIFAR batch does")
            follow(self, argument)
        raise Refused("it does not end")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        """The values after the last mark; the stack is again what it was before it."""
        values, self.stack = self.stack, self.outer.pop()
        return values

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Refused("it takes more values than it made")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Refused("it appends to what is no list")
        target.extend(values)

    def update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise Refused("it sets items of what is no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[_text(key)] = value

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def name(self) -> None:
        module, name = self.last(2)
        self.push(Name(f"{_text(module)} {_text(name)}"))

    def reduce(self) -> None:
        match self.last(2):
            case [Name(text=text), (Name(text="numpy ndarray"), *_)] if text in REBUILD:
                self.push(Array())
            case [Name(text="numpy dtype"), ("u1" | b"u1", *_)]:
                self.push(Bytes())
            case [Name(text="_codecs encode"), (str() as text, "latin1" | b"latin1")]:
                # one text may be encoded again and again, so the sum is bounded
                self.budget -= len(text)
                if self.budget < 0:
                    raise Refused("it asks for more memory than the file is long")
                self.push(text.encode("latin-1"))
            case _:
                raise Refused("it calls something, or makes an array that is not uint8")

    def build(self) -> None:
        (state,) = self.last(1)
        match self.stack[-1], state:
            case Bytes(), tuple():
                pass  # byte order and fields: nothing that bytes have
            case Array() as array, (int(), tuple() as shape, Bytes(), int() as fortran, bytes() as raw):
                # bounded before they are multiplied: the product of many long integers would never be done
                if len(shape) > MAX_DIMENSIONS or not all(
                    isinstance(size, int) and 0 <= size <= MAX_BYTES for size in shape
                ):
                    raise Refused("it has an array with an impossible shape")
                if math.prod(shape) != len(raw):
                    raise Refused(f"it has an array of shape {shape} in {len(raw)} bytes")
                values = np.frombuffer(raw, np.uint8)
                array.value = values.reshape(shape[::-1]).T if fortran else values.reshape(shape)
            case _:
                raise Refused("it gives a state to something that is no uint8 array")


def _text(key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if isinstance(key, str):
        return key
    raise Refused("it has a key or a name that is no text")


def _pushing(*names: str) -> dict[str, Callable[[Reader, Any], None]]:
    return dict.fromkeys(names, Reader.push)


INSTRUCTIONS: dict[str, Callable[[Reader, Any], None]] = {
    "PROTO": lambda reader, argument: None,
    "FRAME": lambda reader, argument: None,
    **_pushing("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    **_pushing("BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE"),
    # strings of Python 2, which the disassembler shows as Latin-1
    "BINSTRING": lambda reader, argument: reader.push(argument.encode("latin-1")),
    "SHORT_BINSTRING": lambda reader, argument: reader.push(argument.encode("latin-1")),
    "NONE": lambda reader, argument: reader.push(None),
    "NEWTRUE": lambda reader, argument: reader.push(True),
    "NEWFALSE": lambda reader, argument: reader.push(False),
    "MARK": lambda reader, argument: reader.mark(),
    "EMPTY_LIST": lambda reader, argument: reader.push([]),
    "APPEND": lambda reader, argument: reader.extend(reader.last(1)),
    "APPENDS": lambda reader, argument: reader.extend(reader.since_mark()),
    "EMPTY_DICT": lambda reader, argument: reader.push({}),
    "SETITEM": lambda reader, argument: reader.update(reader.last(2)),
    "SETITEMS": lambda reader, argument: reader.update(reader.since_mark()),
    "EMPTY_TUPLE": lambda reader, argument: reader.push(()),
    "TUPLE": lambda reader, argument: reader.push(tuple(reader.since_mark())),
    "TUPLE1": lambda reader, argument: reader.push(tuple(reader.last(1))),
    "TUPLE2": lambda reader, argument: reader.push(tuple(reader.last(2))),
    "TUPLE3": lambda reader, argument: reader.push(tuple(reader.last(3))),
    "BINPUT": Reader.remember,
    "LONG_BINPUT": Reader.remember,
    "MEMOIZE": lambda reader, argument: reader.remember(len(reader.memo)),
    "BINGET": lambda reader, argument: reader.push(reader.memo[argument]),
    "LONG_BINGET": lambda reader, argument: reader.push(reader.memo[argument]),
    "GLOBAL": lambda reader, argument: reader.push(Name(argument)),
    "STACK_GLOBAL": lambda reader, argument: reader.name(),
    "REDUCE": lambda reader, argument: reader.reduce(),
    "BUILD": lambda reader, argument: reader.build(),
}


def load(path: Path) -> dict[str, object]:
    """The dict in a pickled batch, its arrays filled. Any other content raises ``Refused``."""
    if path.stat().st_size > MAX_BYTES:
        raise Refused("it is longer than any CIFAR batch")
    try:
        content = Reader(path.read_bytes()).run()
    except (IndexError, KeyError):
        raise Refused("it takes values that it did not make") from None
    except Refused:
        raise
    except ValueError as error:
        raise Refused(f"it is no readable pickle ({str(error)[:80]!r})") from None
    if not isinstance(content, dict):
        raise Refused(f"it holds a {type(content).__name__} where a dict belongs")
    return {key: value.value if isinstance(value, Array) else value for key, value in content.items()}
