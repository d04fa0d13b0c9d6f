"""Text of strangers on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxyfl.core.errors import ConfigError
from proxyfl.core.text import LONGEST_LINE, one_line, printable, told


def test_control_characters_become_words() -> None:
    assert printable("a\x1b[2Jb\x07\u202ec\x9b") == "a\\x1b[2Jb\\x07\\u202ec\\x9b"
    assert printable("two\nlines\tand a tab") == "two\nlines\tand a tab"
    assert printable("größer × 3") == "größer × 3"


def test_what_was_told_is_one_short_line() -> None:
    assert told("disk\nfull" + 300 * " " + "round 3:\x1b[2J", 100) == "disk full round 3:\\x1b[2J"
    for text in ("x" * 10_000, "\x1b" * 10_000, "\ud800" * 50):
        assert len(told(text, 60)) <= 60
        assert told(text, 60).isprintable()


def test_one_line() -> None:
    assert one_line(" a\n\n  b\tc\r\n") == "a b c"
    long = one_line("x" * 10_000 + "end")
    assert len(long) <= LONGEST_LINE
    assert long.endswith("end")


@given(st.text(st.characters(codec=None)))
def test_whatever_it_is(text: str) -> None:
    assert one_line(text).isprintable()
    assert str(ConfigError(text)).isprintable()
