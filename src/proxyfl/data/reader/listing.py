"""What was found before any image is decoded: files, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.errors import ConfigError, DataError, nearest

UNLABELLED = ("unlabelled", "unlabeled")
"""The folder for images without a label, in either spelling."""
SPLITS = ("train", "val", "test")
SPLIT_WORDS = {name: name for name in SPLITS} | {"training": "train", "validation": "val", "valid": "val"}
"""What people call them, in folders and tables, in small letters or others."""
CLIENT = "client="
"""What the name of a client's folder begins with."""
NO_LABEL = -1
NONE_IN_ARRAYS = str(NO_LABEL)
MINUS_ONE = "'-1' is read as a class; in tables, leave the cell empty if there is no label"
LONGEST_NUMBER = 18
MOST_NAMED = 10
"""How many problems an error tells."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An image file, with the names of its class, its client and its split where they are known."""

    file: Path
    label: str | None = None
    client: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Listing:
    """Image files in reading order, the form they were found in, and the number of other entries."""

    root: Path
    form: str
    entries: tuple[Entry, ...]
    ignored: int = 0
    faults: tuple[str, ...] = ()
    """What is wrong, in sentences; images with a label that cannot be have none."""
    empty: tuple[str, ...] = ()
    """Folders in the place of classes that hold no image."""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(entry.file for entry in self.entries)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes found, in order."""
        return in_order(entry.label for entry in self.entries if entry.label is not None)

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients found, in order."""
        return in_order(entry.client for entry in self.entries if entry.client is not None)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each name once; numbers by their size, other names by their letters."""
    found = sorted(set(names))
    digits = all(name.isascii() and name.isdecimal() and len(name) < LONGEST_NUMBER for name in found)
    return tuple(sorted(found, key=int) if digits else found)


def as_one_error(faults: Sequence[str]) -> DataError:
    """One error that tells all that is wrong, up to a bound."""
    if len(faults) == 1:
        return DataError(faults[0])
    listed = "; ".join(f"({number}) {fault}" for number, fault in enumerate(faults[:MOST_NAMED], 1))
    more = f"; and {len(faults) - MOST_NAMED:,} more" if len(faults) > MOST_NAMED else ""
    return DataError(f"{len(faults):,} problems: {listed}{more}")


def class_number(label: str, classes: Sequence[str], where: str) -> int:
    """The place of a label in a federation's list of classes."""
    if label not in classes:
        hint = nearest(label, classes)
        raise DataError(f"{where}: class '{label}' is not in the class list; {hint}")
    return list(classes).index(label)


def split_named(word: str, where: str) -> str | None:
    """The split that a cell names; an empty one says nothing."""
    if word and word.lower() not in SPLIT_WORDS:
        raise DataError(f"{where}: split '{word}' is unknown; write train, val or test")
    return SPLIT_WORDS[word.lower()] if word else None


def parse_keys(text: str, roles: Sequence[str]) -> dict[str, str]:
    """``images=pixels,labels=diagnosis`` as a dictionary from roles to the names in a file."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        role, equals, name = (word.strip() for word in part.partition("="))
        if not equals or not name:
            raise ConfigError(f"data.keys: '{part}' must be ROLE=NAME, as in {roles[0]}=my_{roles[0]}")
        if role not in roles:
            raise ConfigError(f"data.keys: unknown role '{role}'; {nearest(role, roles)}")
        found[role] = name
    return found
