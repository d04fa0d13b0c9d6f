"""Does a run grow with its rounds? 2,000 rounds on tiny data, watched from inside.

    python benchmarks/long_run.py [--rounds 2000]

ProxyFL plays in one process, FlexMatch, which keeps something for every client, with a worker process; both
in a real run directory. Compares what rounds around the 100th and the last ones take: memory, open files,
threads, CPU time, wall time, bytes written. Prints the ratios and writes ``results/long-run.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stage import MEGABYTE, Stage, drawn_simulation, resident, settings, staged

from proxyfl.engines.pool import PoolEngine
from proxyfl.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
EARLY, WINDOW = 100, 50
COLUMNS = ("method", "engine", "quantity", "around round 100", "at the end", "ratio", "rounds")
CLIENTS, PER_ROUND = 8, 2
RUNS = (("proxyfl", "inline", 0), ("flexmatch", "pool", 1))


@dataclass(frozen=True)
class Quantity:
    """Something that must not grow, and how the values of several rounds become one."""

    unit: str
    scale: float
    pick: Callable[[list[float]], float]


QUANTITIES = {
    "memory": Quantity("MB", 1 / MEGABYTE, max),
    "worker's memory": Quantity("MB", 1 / MEGABYTE, max),
    "open files": Quantity("", 1, max),
    "threads": Quantity("", 1, max),
    "CPU time": Quantity("ms", 1000, statistics.median),
    "wall time": Quantity("ms", 1000, statistics.median),
    "written": Quantity("kB", 1 / 1000, statistics.median),
}


def serve(method: str, workers: int, rounds: int, folder: Path) -> None:
    """The process of one method: a line of JSON per round."""
    config = settings(
        method, clients=CLIENTS, per_round=PER_ROUND, rounds=rounds, dtype="fp32", width=1, train__epochs=1,
        train__batch=8,
    )  # fmt: skip
    simulation = drawn_simulation(CLIENTS, labelled=4, unlabelled=12, images=2_000, size=8)
    with staged(folder, config, simulation, workers) as stage:
        for _ in range(rounds):
            wall, cpu, written = time.perf_counter(), time.process_time(), bytes_written()
            stage.play()
            values = {
                "memory": resident(),
                "worker's memory": sum(map(resident, worker_ids(stage))),
                "open files": open_files(),
                "threads": threads(),
                "CPU time": time.process_time() - cpu,
                "wall time": time.perf_counter() - wall,
                "written": bytes_written() - written,
            }
            print(json.dumps(values), flush=True)


def worker_ids(stage: Stage) -> list[int]:
    engine = stage.federation.engine
    return [worker.process.pid for worker in engine.workers] if isinstance(engine, PoolEngine) else []


def open_files() -> int:
    for place in ("/proc/self/fd", "/dev/fd"):
        try:
            return sum(1 for _ in Path(place).iterdir())
        except OSError:
            continue
    return 0


def threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()


def bytes_written() -> int:
    """By this process so far; where the system does not tell, nothing."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def watch(method: str, workers: int, rounds: int, folder: Path) -> list[dict[str, float]]:
    """What every round of one run took."""
    words = ["--serve", method, str(workers), str(folder / "run"), "--rounds", str(rounds)]
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    lines = [json.loads(line) for line in process.stdout]
    if process.wait():
        raise SystemExit(f"{method}: the process that plays the rounds ended with code {process.returncode}")
    return lines


def compare(lines: list[dict[str, float]], early: int = EARLY, window: int = WINDOW) -> list[list[str]]:
    """Rows of quantity, early value, late value and their ratio."""
    first, last = lines[early - window // 2 : early + window // 2], lines[-window:]
    rows = []
    for name, quantity in QUANTITIES.items():
        before, after = (
            quantity.scale * quantity.pick([line[name] for line in part]) for part in (first, last)
        )
        if before:
            label = f"{name} ({quantity.unit})" if quantity.unit else name
            rows.append([label, f"{before:.4g}", f"{after:.4g}", f"{after / before:.3f}"])
    return rows


def sizes(folder: Path, rounds: int) -> list[list[str]]:
    """What the logs take per round."""
    run = RunDirectory(folder / "run")
    files = (run.metrics, run.metrics_copy, run.timing, run.events)
    return [
        [f"{file.name} (bytes a round)", "", f"{file.stat().st_size / rounds:.4g}", ""]
        for file in files
        if file.exists()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--serve", nargs=3, metavar=("METHOD", "WORKERS", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        method, workers, folder = given.serve
        serve(method, int(workers), given.rounds, Path(folder))
        return
    rows: list[list[str]] = []
    for method, engine, workers in RUNS:
        with tempfile.TemporaryDirectory(prefix="proxyfl-long-") as folder:
            lines = watch(method, workers, given.rounds, Path(folder))
            found = compare(lines) + sizes(Path(folder), given.rounds)
        for row in found:
            rows.append([method, engine, *row, str(given.rounds)])
            print("  ".join(rows[-1]), flush=True)
    with (ROOT / "results" / "long-run.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


if __name__ == "__main__":
    main()
