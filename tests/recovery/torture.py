"""The long form of the tests of recovery, with a progress bar: ``make torture``.

    python tests/recovery/torture.py [--kills 100] [--cases 12000] [--asked 150] [--only kills|damage]
                                     [--methods proxyfl,flexmatch,fedloke]

Kills every method on every engine so many times, spoils so many files one at a time and several at once, and
asks the command line about some of them. Ends at the first thing that is wrong. Writes what happened to
``results/torture-kills.csv`` and ``results/torture-damage.csv``.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from damage import AS_NEW, REFUSED, STEP_BACK, Fuzzed, Patient, ask_as_a_user, fuzz, opened_only  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from siege import METHODS, Siege, Stage  # noqa: E402

RESULTS = HERE.parents[1] / "results"
ENGINES = {"inline": 0, "pool": 2}
SEED = 7
OTHER = ("worker", "full", "read-only", "broken", "limit")
Row = Sequence[object]
KILL_COLUMNS = (
    "method", "engine", "killed", "of these before the run existed", "worker killed", "disk full",
    "read-only", "flush failed", "file-size limit", "completed runs, all bit-identical",
)  # fmt: skip


def kill(kills: int, methods: Sequence[str], folder: Path, bars: Progress) -> None:
    """What happened is written down after every method and engine."""
    with Stage() as stage:
        for method in methods:
            expected = Siege(stage, folder / method, method, 0, SEED).undisturbed()
            for engine, workers in ENGINES.items():
                bar = bars.add_task(f"kills: {method}, {engine}", total=kills)
                place = folder / f"{method}-{engine}"
                siege = Siege(stage, place, method, workers, SEED, tell=_step(bars, bar))
                assert siege.undisturbed() == expected
                siege.endure(kills, expected)
                early, other = siege.rounds_at_kill.count(-1), [siege.happened[kind] for kind in OTHER]
                row = (method, engine, siege.happened["killed"], early, *other, siege.finished)
                write(RESULTS / "torture-kills.csv", [KILL_COLUMNS, *_others(method, engine), row])


def _others(method: str, engine: str) -> list[Row]:
    """What is known of other methods and engines."""
    path = RESULTS / "torture-kills.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in list(csv.reader(file))[1:] if row[:2] != [method, engine]]


def spoil(cases: int, asked: int, folder: Path, bars: Progress) -> list[Row]:
    patient = Patient.admit(folder)
    with opened_only(patient):
        one = bars.add_task("damage: one file", total=cases)
        alone = fuzz(patient, cases, SEED, tell=_step(bars, one))
        several = bars.add_task("damage: several files", total=cases // 5)
        together = fuzz(patient, cases // 5, SEED, at_once=4, tell=_step(bars, several))
    users = bars.add_task("damage: as a user", total=asked)
    kinds = list(patient.kinds())
    for number in range(asked):
        ask_as_a_user(patient, kinds[number % len(kinds)], random.Random(f"{SEED} {number}"))
        bars.advance(users)
    rows: list[Row] = [("damaged", "cases", AS_NEW, STEP_BACK, REFUSED)]
    rows += [_row(kind, alone, [kind]) for kind in kinds]
    rows.append(_row("four files at once", together, kinds))
    rows.append(("through the command line, to the end of the run", asked, "", "", ""))
    return rows


def _row(name: str, found: Fuzzed, kinds: Sequence[str]) -> Row:
    known = [found.verdicts.get(kind, Counter[str]()) for kind in kinds]
    counts = [sum(each[verdict] for each in known) for verdict in (AS_NEW, STEP_BACK, REFUSED)]
    return (name, sum(counts), *counts)


def _step(bars: Progress, bar: object) -> Callable[[], None]:
    return lambda: bars.advance(bar)  # type: ignore[arg-type]


def write(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="per method and engine")
    parser.add_argument("--cases", type=int, default=12_000, help="files spoiled one at a time")
    parser.add_argument(
        "--asked", type=int, default=150, help="spoiled files that the command line is asked about"
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="that are killed")
    parser.add_argument("--only", choices=("kills", "damage"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="proxyfl-torture-") as folder, Progress(*columns) as bars:
        if given.only != "damage":
            kill(given.kills, given.methods.split(","), Path(folder) / "kills", bars)
        if given.only != "kills":
            write(RESULTS / "torture-damage.csv", spoil(given.cases, given.asked, Path(folder), bars))


if __name__ == "__main__":
    main()
