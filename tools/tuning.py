"""Choose the length of the common start of a mini protocol, by the rule of docs/paper-protocol.md alone.

python tools/tuning.py svhn --data-root DATA --runs RUNS     runs, judges, writes results/mini-tuning.csv
python tools/tuning.py svhn --data-root DATA --set labels.ten_percent=1000     with other settings

Runs FedAvg-SL, FedAvg and FixMatch-GPL on the tuning seeds for one length after the other and stops at the
first that keeps the rule. Who wins among the methods is never looked at.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import statistics
import sys
from pathlib import Path

from proxyfl.core.trees import dotted, merge, nested, parse_assignment
from proxyfl.paper import plan, results
from proxyfl.paper.catalogue import item
from proxyfl.paper.items import Column, Row
from proxyfl.paper.scales import TUNING_SEEDS, Protocol, Scale, scale
from proxyfl.runs.batch import Job, train_all

LENGTHS = (15, 25, 40)
METHODS = (
    Row("FedAvg-SL", "fedavg-sl", bound=True),
    Row("FedAvg", "fedavg"),
    Row("FixMatch-GPL", "fixmatch-gpl"),
)
GAP, CONFIDENT = 15.0, 30.0
REACHED = {"cifar10": 55.0}
MINUTES = {"cifar10": 25.0}
FILE = Path(__file__).parent.parent / "results" / "mini-tuning.csv"


def variant(data: str, rounds: int, changes: dict[str, object]) -> Scale:
    """The mini scale with another length of the common start of one data set."""
    mini = scale("mini")
    old = mini.protocols[data]
    protocol: Protocol = dataclasses.replace(
        old,
        settings=merge(old.settings, nested(changes)),
        warm=merge(old.warm, {"federation": {"rounds": rounds}}),
    )
    return dataclasses.replace(mini, name=f"mini-{rounds}", protocols={**mini.protocols, data: protocol})


def made(size: Scale, data: str, folder: Path, root: Path | None, side_by_side: int) -> list[results.Result]:
    """The runs of the tuning seeds, trained where they are missing."""
    cases = [plan.Case(item("table1"), size, row, Column(data, 0.1)) for row in METHODS]

    def jobs() -> list[Job]:
        return plan.jobs(cases, TUNING_SEEDS, folder, root)

    _train(plan.starts(cases, jobs(), folder, root, plan.Known()), side_by_side)
    _train(jobs(), side_by_side)
    return [results.result(case, case.job(seed, folder, root)) for case in cases for seed in TUNING_SEEDS]


def _train(jobs: list[Job], side_by_side: int) -> None:
    failed = train_all([job for job in jobs if not job.finished], side_by_side)
    if failed:
        raise SystemExit("\n".join(f"{path}: {why}" for path, why in failed.items()))


def judged(data: str, found: list[results.Result]) -> list[tuple[str, float, float, bool]]:
    """Each part of the rule on each seed: what it is about, the value, the bound, whether it holds."""
    rows = []
    for seed in TUNING_SEEDS:
        of = {result.method: result for result in found if result.seed == seed}
        every, labelled, fixmatch = (of[row.method] for row in METHODS)
        gap = 100 * (every.mean_last - labelled.mean_last)
        rows.append((f"seed {seed}: every label minus labelled only", gap, GAP, gap >= GAP))
        share = 100 * (fixmatch.confident_share or 0.0)
        rows.append((f"seed {seed}: confident share of FixMatch-GPL", share, CONFIDENT, share >= CONFIDENT))
        reached, wanted = 100 * every.mean_last, REACHED.get(data, 75.0)
        rows.append((f"seed {seed}: every label", reached, wanted, reached >= wanted))
        minutes, most = (fixmatch.cpu_seconds or 0.0) / 60, MINUTES.get(data, 10.0)
        rows.append((f"seed {seed}: processor minutes of FixMatch-GPL", minutes, most, minutes <= most))
    return rows


def write(
    data: str, rounds: int, changes: dict[str, object], found: list[results.Result], kept: bool
) -> None:
    """Put the runs into the file of tuning runs, in place of earlier ones of the same settings."""
    extra = {
        "data_set": data,
        "start_rounds": rounds,
        "changes": " ".join(f"{k}={v}" for k, v in changes.items()),
    }
    old: list[dict[str, str]] = []
    if FILE.exists():
        with FILE.open(newline="", encoding="utf-8") as file:
            old = [
                row for row in csv.DictReader(file) if row.get("identity") not in {r.identity for r in found}
            ]
    text = results.to_csv({(result.row, str(result.seed)): [result] for result in found})
    new = [{**extra, "rule_kept": kept, **row} for row in csv.DictReader(text.splitlines())]
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*new[0]], lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows([*(row for row in old if "data_set" in row), *new])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/tuning"))
    parser.add_argument("--side-by-side", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))), default=LENGTHS)
    given = parser.parse_args()
    changes = {key: value for text in given.set for key, value in dotted(parse_assignment(text)).items()}
    for rounds in given.lengths:
        size = variant(given.data, rounds, changes)
        found = made(size, given.data, given.runs, given.data_root, given.side_by_side)
        rows = judged(given.data, found)
        kept = all(holds for *_, holds in rows)
        write(given.data, rounds, changes, found, kept)
        print(
            f"{given.data}, common start of {rounds} rounds: the rule {'holds' if kept else 'does not hold'}"
        )
        for what, value, bound, holds in rows:
            print(f"  {'yes' if holds else 'NO '}  {what}: {value:.1f} (bound {bound:g})")
        means = {
            row.label: statistics.fmean(r.mean_last for r in found if r.method == row.method)
            for row in METHODS[:2]
        }
        print("  " + ", ".join(f"{label} {100 * value:.1f} %" for label, value in means.items()), flush=True)
        if kept:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
