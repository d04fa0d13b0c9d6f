"""Does a run hold more memory the longer it lasts? The resident size of its processes over 50 rounds.

    python benchmarks/memory.py [--rounds 50] [--workers 2,0] [--method proxyfl]

Prints the size after every fifth round of the process that runs the rounds and of each worker, and how the
last compares with that of round 3, when everything is warm. Ends with 1 where one differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from stage import MEGABYTE, drawn_simulation, resident, settings, staged

from proxyfl.engines.pool import PoolEngine

WARM = 3
"""The round whose size is what all later ones are compared with."""

TOLERANCE = 0.05


def serve(method: str, rounds: int, workers: int, size: int, folder: Path) -> None:
    """Play a run in this process; a line per round tells the bytes of it and of its workers."""
    config = settings(
        method, clients=20, per_round=4, rounds=rounds, width=1, dtype="fp32", train__epochs=1, train__batch=8
    )
    simulation = drawn_simulation(20, labelled=8, unlabelled=40, images=2_000, size=size)
    with staged(folder, config, simulation, workers) as stage:
        for _ in range(rounds):
            stage.play()
            engine = stage.federation.engine
            pids = [worker.process.pid for worker in engine.workers] if isinstance(engine, PoolEngine) else []
            print(json.dumps([resident(), *map(resident, pids)]), flush=True)


def measure(method: str, rounds: int, workers: int, size: int) -> list[list[int]]:
    """For every round the bytes of the parent and of each worker, from a run in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="proxyfl-memory-") as folder:
        given = ["--serve", f"{folder}/run", "--method", method, "--rounds", str(rounds),
                 "--workers", str(workers), "--size", str(size)]  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), *given],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def growth(sizes: list[list[int]]) -> list[float]:
    """The last size of each process by that of round 3, less 1."""
    return [last / warm - 1 for last, warm in zip(sizes[-1], sizes[WARM - 1], strict=True)]


def show(sizes: list[list[int]]) -> None:
    names = ["run", *(f"worker {place}" for place in range(1, len(sizes[0])))]
    print("round " + "".join(f"{name:>10}" for name in names) + "  MB")
    for round, row in enumerate(sizes, 1):
        if round in (1, WARM, len(sizes)) or round % 5 == 0:
            print(f"{round:5} " + "".join(f"{value / MEGABYTE:10.1f}" for value in row))
    print("since " + "".join(f"{100 * change:+9.1f}%" for change in growth(sizes)) + f"  of round {WARM}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--workers", default="2,0", help="numbers of worker processes to try")
    parser.add_argument("--method", default="proxyfl")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.method, options.rounds, int(options.workers), options.size, Path(options.serve))
        return
    worst = 0.0
    for workers in map(int, options.workers.split(",")):
        print(f"{options.method}, {options.size}×{options.size}, {workers} workers")
        sizes = measure(options.method, options.rounds, workers, options.size)
        show(sizes)
        worst = max(worst, *map(abs, growth(sizes)))
    print(f"largest change {100 * worst:.1f} %, {'within' if worst <= TOLERANCE else 'BEYOND'} "
          f"{100 * TOLERANCE:.0f} %")  # fmt: skip
    sys.exit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
