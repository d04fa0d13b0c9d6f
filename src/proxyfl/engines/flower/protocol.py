"""Which versions of the messages between server and sites a program speaks; the highest common one counts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from proxyfl.core.errors import ConfigError
from proxyfl.core.text import reported

OLDEST, NEWEST = 1, 1
"""Of messages that this program can read and write."""

PROTOCOL, PROGRAM = "protocol", "proxyfl"


def spoken() -> dict[str, Any]:
    """What a header says of the program that sends it."""
    return {PROTOCOL: [OLDEST, NEWEST], PROGRAM: metadata.version("proxyfl")}


def negotiated(header: Mapping[str, Any], other: str, here: str) -> int:
    """The version that both speak; where there is none, an error says who has to be upgraded."""
    oldest, newest = _range(header)
    common = min(newest, NEWEST)
    if common >= max(oldest, OLDEST):
        return common
    old, new = (other, here) if newest < OLDEST else (here, other)
    theirs = f"{oldest} to {newest}" if oldest != newest else f"{newest}"
    ours = f"{OLDEST} to {NEWEST}" if OLDEST != NEWEST else f"{NEWEST}"
    version = reported(str(header.get(PROGRAM, "")), 40) or "of an earlier version"
    raise ConfigError(
        f"{other} (proxyfl {version}) speaks version {theirs} of the messages, {here} "
        f"(proxyfl {metadata.version('proxyfl')}) {ours}: upgrade {old} to the proxyfl of {new}"
    )


def _range(header: Mapping[str, Any]) -> tuple[int, int]:
    """(oldest, newest); whoever says nothing is from before there were versions."""
    found = header.get(PROTOCOL)
    if isinstance(found, list) and len(found) == 2 and all(type(number) is int for number in found):
        return found[0], found[1]
    return 0, 0
