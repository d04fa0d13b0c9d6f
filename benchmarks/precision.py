"""What does bf16 cost in accuracy? The same seeds in fp32 and in bf16, paired.

    python benchmarks/precision.py --data-root DATA [--runs runs/precision]

Makes what is missing of ``precision-digits.toml`` and ``precision-cifar10.toml`` and writes
``results/precision.csv``; without CIFAR-10 at hand, digits alone.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from proxyfl import Run
from proxyfl.cli.sweep import train_missing
from proxyfl.core.errors import DataError
from proxyfl.data import sources
from proxyfl.results.cells import Spread
from proxyfl.results.paired import paired_difference
from proxyfl.runs.sweep import jobs_of, read_grid

HERE = Path(__file__).parent
GRIDS = ("precision-digits.toml", "precision-cifar10.toml")
COLUMNS = (
    "data",
    "method",
    "fp32 (%)",
    "bf16 (%)",
    "difference (points)",
    "95 % interval",
    "seeds",
    "verdict",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/precision"))
    parser.add_argument("--data-root", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "precision.csv")
    options = parser.parse_args()
    rows = []
    for name in GRIDS:
        grid = read_grid(HERE / name)
        try:
            sources.load(grid.data[0], options.data_root)
        except DataError as error:
            print(f"left out: {error}")
            continue
        jobs = jobs_of(grid, options.runs, options.data_root)
        if failed := train_missing(jobs):
            raise SystemExit(f"{len(failed)} runs failed; nothing was written")
        for method in grid.methods:
            rows.append(row(grid.data[0], method, [job.path for job in jobs]))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    for line in rows:
        print("  ".join(map(str, line)))


def row(data: str, method: str, paths: list[Path]) -> list[str]:
    runs = [run for run in map(Run, paths) if run.config.method.name == method]
    long, short = (
        {run.config.seed: run.summary.mean_last for run in runs if run.config.compute.dtype == dtype}
        for dtype in ("fp32", "bf16")
    )
    difference = paired_difference(short, long)
    assert difference is not None, "no seed was run in both types"
    known = difference.low is not None and difference.high is not None
    interval = f"{100 * difference.low:+.2f} to {100 * difference.high:+.2f}" if known else "–"  # type: ignore[operator]
    return [
        data, method, Spread.of([*long.values()]).text(), Spread.of([*short.values()]).text(),
        f"{100 * difference.mean:+.2f}", interval, str(difference.pairs), difference.verdict,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
