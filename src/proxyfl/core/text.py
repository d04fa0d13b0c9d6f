"""Text for people: what comes from an untrusted file made fit for a terminal or a page, times in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

LONGEST_LINE = 2000
UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What Python calls printable and nobody sees: fillers, joiners and selectors of variants. With them two
names look alike. The page's script has the same list."""


def printable(text: str) -> str:
    """Control characters, marks that turn the direction of text and others that nobody sees, as escapes; line
    ends and tabs stay.
    """
    text = UNSEEN.sub(lambda found: _escaped(found[0]), text)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _escaped(sign) for sign in text)


def reported(text: str, limit: int) -> str:
    """What somebody elsewhere reported: one line, without runs of blanks that would make it look like two."""
    return one_line(" ".join(text[: 4 * limit].split()), limit)


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """The same on a single line that is not too long."""
    if len(text) > limit:
        half = limit // 2 - 2
        text = f"{text[:half]} … {text[-half:]}"
    parts = text.replace("\t", " ").splitlines()
    line = printable(" ".join(part.strip() for part in parts if part.strip()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def duration(seconds: float) -> str:
    """A time in its fitting unit: ``2.5 s``, ``48 s``, ``2:05 min``, ``3:12 h``."""
    whole = round(seconds)
    if whole < 60:
        return f"{round(seconds, 1):g} s" if whole < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def name_alone(data: str) -> str:
    """A data set's name without the folders of the machine that it lies on, for what others read."""
    kind, separator, place = data.partition(":")
    return f"{kind}:{PurePath(place).name}" if separator else data


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names in a sentence; of many, the first and the last ones."""
    if len(names) <= most:
        return ", ".join(names)
    half = most // 2
    return f"{', '.join(names[:half])}, … ({len(names) - 2 * half} more) …, {', '.join(names[-half:])}"


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def in_words(count: float) -> str:
    """A number of bytes for people: 30.7 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def shortened(words: Sequence[str], between: str = ", ", most: int = 3) -> str:
    """The first of some words, and how many more there are.

    >>> shortened(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return between.join(words[:most]) + more
