"""A table in no format yet: what stands where, what belongs together, what is said below it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxyfl.core.errors import ConfigError
from proxyfl.results.paired import LEVEL, Difference, warning

NONE, MINUS = "–", "−"


@dataclass(frozen=True)
class Field:
    """What stands at one place. ``rank``: 1 the best of its group, 2 the second best, 0 no matter.
    ``tint`` is its colour in a terminal.
    """

    text: str
    rank: int = 0
    tint: str = ""


@dataclass(frozen=True)
class Column:
    """``follows``: it belongs to the column before it and is never parted from that."""

    heading: str
    left: bool = False
    follows: bool = False


@dataclass(frozen=True)
class Panel:
    """A table. The first ``keys`` columns say what a row is about; ``breaks`` are rows that begin a group."""

    name: str
    title: str
    columns: tuple[Column, ...]
    keys: int
    rows: tuple[tuple[Field, ...], ...]
    caption: tuple[str, ...]
    breaks: frozenset[int] = frozenset()


def columns_named(panels: Sequence[Panel], wanted: Sequence[str]) -> list[Panel]:
    """Tables with the columns wanted alone, in that order, after those that say what a row is about. A column
    is named by its heading or the beginning of it; a table that has none of them is left out.
    """
    heads = [column.heading for panel in panels for column in panel.columns[panel.keys :]]
    if unknown := [name for name in wanted if not any(_called(head, name) for head in heads)]:
        known = ", ".join(f"'{head}'" for head in dict.fromkeys(heads))
        raise ConfigError(f"no column is called '{unknown[0]}'; there are {known}")
    made = []
    for panel in panels:
        keys = range(panel.keys)
        found = [
            place
            for name in wanted
            for place in range(panel.keys, len(panel.columns))
            if _called(panel.columns[place].heading, name)
        ]
        kept = [*keys, *dict.fromkeys(found)]
        columns = tuple(panel.columns[place] for place in kept)
        rows = tuple(tuple(row[place] for place in kept) for row in panel.rows)
        caption = tuple(line for line in panel.caption if not _explains_others(line, panel.columns, columns))
        panel = dataclasses.replace(panel, columns=columns, rows=rows, caption=caption)
        made += [panel] if found else []
    return made


def _explains_others(line: str, columns: Sequence[Column], kept: Sequence[Column]) -> bool:
    """Whether a line of the caption explains a column that was left out: ``Rounds: …`` does, for one."""
    about = line.partition(":")[0].split()[0].lower() if ":" in line else ""
    explained = [column for column in columns if about and column.heading.lower().split()[0] == about]
    return bool(explained) and not any(column in kept for column in explained)


def _called(heading: str, name: str) -> bool:
    return heading.replace(" ", "").lower().startswith(name.replace(" ", "").lower())


def stacked(
    name: str,
    title: str,
    columns: Sequence[Column],
    keys: int,
    blocks: Iterable[Sequence[tuple[Field, ...]]],
    caption: Iterable[str],
) -> Panel:
    """A table of several blocks of rows, parted by breaks."""
    rows: list[tuple[Field, ...]] = []
    breaks = set()
    for block in blocks:
        breaks |= {len(rows)} if rows and block else set()
        rows += block
    return Panel(name, title, tuple(columns), keys, tuple(rows), tuple(caption), frozenset(breaks))


Compared = tuple[Sequence[str], Difference | None]
"""What a row of differences is about, and the difference."""


def difference_panel(
    name: str,
    title: str,
    keys: Sequence[Column],
    blocks: Iterable[Sequence[Compared]],
    metric: str,
    *,
    what: str = "difference",
    chance: bool = False,
) -> Panel:
    """Differences of an accuracy, called ``metric`` in words: points, interval, pairs and verdict; with
    ``chance`` also how likely they are without any real difference.
    """
    blocks = list(blocks)
    measures = [what, "bootstrap interval", "pairs", *(["p, corrected"] if chance else [])]
    columns = [*keys, *map(Column, measures), Column("verdict", left=True)]
    rows = [
        [(*map(Field, about), *_difference_fields(found, chance=chance)) for about, found in block]
        for block in blocks
    ]
    caption = _difference_caption(metric, [found for block in blocks for _, found in block if found])
    return stacked(name, title, columns, len(keys), rows, caption)


def _difference_fields(found: Difference | None, *, chance: bool) -> list[Field]:
    if found is None:
        return [*map(Field, (NONE, NONE, "0", *([NONE] if chance else []), "no common seed"))]
    bounds = NONE
    if found.low is not None and found.high is not None:
        bounds = f"{signed(100 * found.low)} to {signed(100 * found.high)}"
    likely = [f"{found.chance:.3f}" if found.low is not None else NONE] if chance else []
    return [*map(Field, (signed(100 * found.mean), bounds, str(found.pairs), *likely, found.verdict))]


def _difference_caption(metric: str, found: Sequence[Difference]) -> list[str]:
    """How differences were taken and what they are worth."""
    fewest = min((each.pairs for each in found if warning(each.pairs)), default=0)
    family = max((each.family for each in found), default=1)
    lines = [
        f"{metric[0].upper()}{metric[1:]}, paired by seed; interval: percentile bootstrap over seeds at "
        f"{100 * LEVEL:.0f} %, for each row on its own; noise: the interval contains 0, or random "
        f"sign flips give a difference as large in more than {100 - 100 * LEVEL:.0f} % of cases."
    ]
    if family > 1:
        lines.append(
            f"p: exact sign-flip test, corrected by Holm's rule for {family} comparisons per data set."
        )
    return [*lines, f"{warning(fewest)}."] if fewest else lines


def signed(value: float, form: str = "+.2f") -> str:
    """A number with its sign, which is as long as a plus."""
    return f"{value:{form}}".replace("-", MINUS)
