"""Rescaling and window of a frame of an Enhanced DICOM file, where they lie in its functional groups.

What else these groups say of a frame, such as dates and comments, is passed over: of an element that is not
wanted, only tag and length are read. Memory is taken for a few short values, whatever the file claims.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import BinaryIO

SHARED, PER_FRAME = 0x5200_9229, 0x5200_9230
GROUPS = {
    0x0028_9145: {0x0028_1052: "RescaleIntercept", 0x0028_1053: "RescaleSlope"},
    0x0028_9132: {0x0028_1050: "WindowCenter", 0x0028_1051: "WindowWidth", 0x0028_1056: "VOILUTFunction"},
}
"""The sequences of a frame that are read, and what of them."""

ENDS = (0xFFFE_E00D, 0xFFFE_E0DD)
"""Tags behind an item, and behind a sequence, of unknown length."""

UNKNOWN = 0xFFFF_FFFF
ROWS = 0x0028_0010
LONG = frozenset(b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split())
"""Kinds of values whose lengths have four bytes."""

LONGEST, DEEPEST, MOST = 1024, 16, 1_000_000
"""Bytes of a value, sequences within sequences, and elements that are looked at."""


class Damaged(Exception):
    """No such structure."""


@dataclass(frozen=True)
class Element:
    tag: int
    start: int
    length: int
    implicit: bool
    """Whether what is within names no kinds of values."""


class Elements:
    """The elements of an open file."""

    def __init__(self, file: BinaryIO, size: int, implicit: bool, little: bool) -> None:
        self.file, self.size, self.implicit, self.left = file, size, implicit, MOST
        order = "<" if little else ">"
        self.tag, self.long, self.short = Struct(f"{order}HH"), Struct(f"{order}L"), Struct(f"{order}H")

    def within(self, outer: Element) -> Iterator[Element]:
        """The items of a sequence, or the elements of an item."""
        place = outer.start
        end = self.size if outer.length == UNKNOWN else min(self.size, outer.start + outer.length)
        while place + 8 <= end:
            found = self._at(place, outer.implicit)
            if found.tag in ENDS:
                return
            yield found
            place = self._behind(found)

    def text(self, element: Element) -> str:
        """The first of its values."""
        if element.length > LONGEST:
            raise Damaged
        self.file.seek(element.start)
        return self.file.read(element.length).decode("ascii").split("\\")[0].strip(" \0")

    def _at(self, place: int, implicit: bool) -> Element:
        self.left -= 1
        self.file.seek(place)
        head = self.file.read(12)
        if len(head) < 8 or self.left < 0:
            raise Damaged
        group, number = self.tag.unpack_from(head)
        tag, kind = group << 16 | number, head[4:6]
        if implicit or group == 0xFFFE or not (kind.isalpha() and kind.isupper()):
            return Element(tag, place + 8, self.long.unpack_from(head, 4)[0], implicit)
        if kind not in LONG:
            return Element(tag, place + 8, self.short.unpack_from(head, 6)[0], implicit)
        if len(head) < 12:
            raise Damaged
        return Element(tag, place + 12, self.long.unpack_from(head, 8)[0], kind == b"UN")

    def _behind(self, element: Element, depth: int = 0) -> int:
        """The place where an element ends."""
        if element.length != UNKNOWN:
            return element.start + element.length
        if depth > DEEPEST:
            raise Damaged
        place = element.start
        while (found := self._at(place, element.implicit)).tag not in ENDS:
            place = self._behind(found, depth + 1)
        return found.start


def of_frame(file: Path, frame: int) -> dict[str, str]:
    """What the functional groups say of a frame, else of all frames, by the names of the tags. What a group
    that is there leaves out is empty; of a group that is not, there is nothing.
    """
    from pydicom.filereader import read_partial

    found: dict[str, str] = {}
    with file.open("rb") as content:
        before = read_partial(content, lambda tag, kind, length: tag >= SHARED, specific_tags=[ROWS])
        start, size = content.tell(), file.stat().st_size
        implicit, little = before.original_encoding
        elements = Elements(content, size, bool(implicit), bool(little))
        for outer in elements.within(Element(0, start, size - start, bool(implicit))):
            if outer.tag > PER_FRAME:
                break
            if outer.tag in (SHARED, PER_FRAME):
                found |= _wanted(elements, outer, frame if outer.tag == PER_FRAME else 0)
    return found


def _wanted(elements: Elements, outer: Element, place: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in islice(elements.within(outer), place, place + 1):
        for group in elements.within(item):
            if names := GROUPS.get(group.tag):
                found |= dict.fromkeys(names.values(), "")
                for one in islice(elements.within(group), 1):
                    values = (value for value in elements.within(one) if value.tag in names)
                    found |= {names[value.tag]: elements.text(value) for value in values}
    return found
