"""The long form of the tests of recovery, with a progress bar: ``make torture``.

    python tests/recovery/torture.py [--kills 1000] [--damages 20000] [--asked 200]
                                     [--engines inline,pool,ray] [--scenario clients,server,partial]

Kills runs of several methods in every scenario on every engine, spoils files one at a time and four at once,
and asks the command line about some of them. Ends at the first thing that is wrong. What happened is added to
``results/torture-kills.csv`` and ``results/torture-damage.csv`` every few cases: started again, it goes on
until the files hold as many as asked for. Remove them to begin anew.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import torch  # noqa: E402
from damage import AS_NEW, REFUSED, STEP_BACK, Patient, ask_as_a_user, fuzz, opened_only  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from siege import METHODS, Engine, Siege, Stage  # noqa: E402

from proxyfl.core.files import write_bytes  # noqa: E402

RESULTS = HERE.parents[1] / "results"
SCENARIOS = ("clients", "server", "partial")
SHARES = {"inline": 5, "pool": 4, "ray": 1}
"""How the kills are shared out: a run on Ray takes many times as long."""

PATIENTS = {"clients": "flexmatch", "server": "semifl", "partial": "cbafed"}
KILLS_AT_A_TIME = {"inline": 5, "pool": 5, "ray": 1}
CASES_AT_A_TIME = 120
SEED = 7
OTHER = ("worker", "full", "read-only", "broken", "limit")
KILL_COLUMNS = (
    "labels at", "method", "engine", "killed", "of these before the run existed", "worker killed",
    "disk full", "read-only", "flush failed", "file-size limit", "completed runs, all bit-identical",
)  # fmt: skip
VERDICTS = (AS_NEW, STEP_BACK, REFUSED)
DAMAGE_COLUMNS = ("damaged", "cases", *VERDICTS)
TOGETHER, ASKED = "four files at once", "through the command line, to the end of the run"


class Tally:
    """A table of counts that outlives the program."""

    def __init__(self, path: Path, columns: Sequence[str], names: int) -> None:
        self.path, self.columns, self.rows = path, columns, dict[tuple[str, ...], list[int]]()
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for row in list(csv.reader(file))[1:]:
                    self.rows[tuple(row[:names])] = [int(word or 0) for word in row[names:]]

    def add(self, name: tuple[str, ...], counts: Sequence[int]) -> None:
        before = self.rows.get(name, [0] * len(counts))
        self.rows[name] = [one + other for one, other in zip(before, counts, strict=True)]

    def write(self) -> None:
        # A row that only says how many shows no zeros.
        shown = {
            name: counts if any(counts[1:]) else [counts[0], *[""] * len(counts[1:])]
            for name, counts in sorted(self.rows.items())
        }
        lines = [self.columns, *((*name, *counts) for name, counts in shown.items())]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        write_bytes(self.path, text.getvalue().encode())


@contextlib.contextmanager
def standing_cluster() -> Iterator[Engine]:
    """A Ray cluster on this machine for as long as it is needed."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        (raylet,) = cluster.head_node.all_processes["raylet"]
        yield Engine(2, cluster.address, raylet.process.pid)
    finally:
        cluster.shutdown()


def kill(
    kills: int, engines: dict[str, Engine], scenarios: Sequence[str], folder: Path, bars: Progress
) -> None:
    """A few at a time of every method and engine, so that whatever is stopped has seen all of them."""
    tally = Tally(RESULTS / "torture-kills.csv", KILL_COLUMNS, 3)
    methods = [method for method, scenario in METHODS.items() if scenario in scenarios]
    parts = len(methods) * sum(SHARES[engine] for engine in engines)
    wanted = {
        (METHODS[method], method, engine): -(-kills * SHARES[engine] // parts)
        for method in methods
        for engine in engines
    }
    done = lambda name: tally.rows.get(name, [0])[0]  # noqa: E731
    bar = bars.add_task("kills", total=sum(wanted.values()), completed=sum(map(done, wanted)))
    expected: dict[str, dict[str, str]] = {}
    with Stage() as stage:
        while left := [name for name in wanted if done(name) < wanted[name]]:
            for name in left:
                _, method, engine = name
                bars.update(bar, description=f"kills: {method}, {engine}")
                if method not in expected:
                    expected[method] = Siege(stage, folder / method, method, Engine(), SEED).undisturbed()
                place = folder / f"{method}-{engine}-{done(name)}"
                seed = (SEED, done(name))
                siege = Siege(stage, place, method, engines[engine], seed, lambda: bars.advance(bar))
                assert siege.undisturbed() == expected[method], name
                siege.endure(min(KILLS_AT_A_TIME[engine], wanted[name] - done(name)), expected[method])
                early, other = siege.rounds_at_kill.count(-1), [siege.happened[kind] for kind in OTHER]
                tally.add(name, [siege.happened["killed"], early, *other, siege.finished])
                tally.write()


def spoil(cases: int, asked: int, scenarios: Sequence[str], folder: Path, bars: Progress) -> None:
    tally = Tally(RESULTS / "torture-damage.csv", DAMAGE_COLUMNS, 1)
    patients = [Patient.admit(folder / name, PATIENTS[name], name) for name in scenarios]
    done = lambda: sum(counts[0] for name, counts in tally.rows.items() if name != (ASKED,))  # noqa: E731
    bar = bars.add_task("damaged files", total=cases, completed=done())
    while done() < cases:
        for patient in patients:
            seed, size = (SEED, done()), min(CASES_AT_A_TIME, cases - done())
            with opened_only(patient):
                for count, at_once in ((size - size // 6, 1), (size // 6, 4)):
                    found = fuzz(patient, count, seed, at_once, tell=lambda: bars.advance(bar))
                    for kind, verdicts in found.verdicts.items():
                        name = TOGETHER if at_once > 1 else kind
                        tally.add((name,), [verdicts.total(), *(verdicts[each] for each in VERDICTS)])
            tally.write()
    ask(tally, patients, asked, bars)


def ask(tally: Tally, patients: Sequence[Patient], asked: int, bars: Progress) -> None:
    done = tally.rows.get((ASKED,), [0])[0]
    users = bars.add_task("damaged files, as a user", total=asked, completed=done)
    for number in range(done, asked):
        patient = patients[number % len(patients)]
        kinds = list(patient.kinds())
        ask_as_a_user(patient, kinds[number % len(kinds)], random.Random(f"{SEED} {number}"))
        tally.add((ASKED,), [1, *[0] * len(VERDICTS)])
        tally.write()
        bars.advance(users)


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"'{text}': choose some of {','.join(known)}")
        return found

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000, help="in all, with those on record")
    parser.add_argument("--damages", type=int, default=20_000, help="damaged files, with those on record")
    parser.add_argument("--asked", type=int, default=200, help="of which the command line is asked about")
    parser.add_argument("--engines", type=words(list(SHARES)), default=list(SHARES))
    parser.add_argument("--scenario", type=words(SCENARIOS), default=list(SCENARIOS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    columns = (TextColumn("{task.description:26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory(prefix="proxyfl-torture-") as folder, contextlib.ExitStack() as stack:
        engines = {"inline": Engine(), "pool": Engine(2)}
        if "ray" in given.engines and given.kills:
            engines["ray"] = stack.enter_context(standing_cluster())
        chosen = {name: engines[name] for name in given.engines if given.kills}
        bars = stack.enter_context(Progress(*columns))
        if given.damages:
            spoil(given.damages, given.asked, given.scenario, Path(folder) / "damage", bars)
        if given.kills:
            kill(given.kills, chosen, given.scenario, Path(folder) / "kills", bars)


if __name__ == "__main__":
    main()
