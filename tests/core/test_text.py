"""Text of strangers on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyfl.core.errors import ConfigError
from proxyfl.core.text import LONGEST_LINE, duration, in_words, one_line, printable, reported


def test_control_characters_become_words() -> None:
    assert printable("a\x1b[2Jb\x07\u202ec\x9b") == "a\\x1b[2Jb\\x07\\u202ec\\x9b"
    assert printable("two\nlines\tand a tab") == "two\nlines\tand a tab"
    assert printable("größer × 3") == "größer × 3"


@pytest.mark.parametrize(
    "sign",
    [
        *map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)),  # direction
        *("\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u180e", "\U000e0041"),  # format
        *("\u2028", "\u2029", "\u034f", "\u115f", "\u3164", "\uffa0", "\ufe0f", "\U000e0100"),  # unseen
    ],
)
def test_what_nobody_sees_becomes_words(sign: str) -> None:
    assert printable(f"a{sign}b") == f"a{sign.encode('unicode_escape').decode()}b"
    assert sign not in one_line(f"a{sign}b")


def test_what_was_told_is_one_short_line() -> None:
    assert reported("disk\nfull" + 300 * " " + "round 3:\x1b[2J", 100) == "disk full round 3:\\x1b[2J"
    for text in ("x" * 10_000, "\x1b" * 10_000, "\ud800" * 50):
        assert len(reported(text, 60)) <= 60
        assert reported(text, 60).isprintable()


def test_one_line() -> None:
    assert one_line(" a\n\n  b\tc\r\n") == "a b c"
    long = one_line("x" * 10_000 + "end")
    assert len(long) <= LONGEST_LINE
    assert long.endswith("end")


@given(st.text(st.characters(codec=None)))
def test_whatever_it_is(text: str) -> None:
    assert one_line(text).isprintable()
    assert str(ConfigError(text)).isprintable()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.46, "2.5 s"),
        (9.6, "10 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (125, "2:05 min"),
        (3599.7, "1:00 h"),
        (11520, "3:12 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sizes_in_words():
    assert [in_words(size) for size in (0, 999, 30_730_000, 687_544_992_000)] == [
        *("0 bytes", "999 bytes", "30.7 MB", "687.5 GB")
    ]
