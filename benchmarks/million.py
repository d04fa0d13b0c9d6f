"""A million registered clients, a thousand in each round, one step each; then two; then two worker processes.

    python benchmarks/million.py [--clients 1000,100000,1000000] [--rounds 3] [--per-round 1000]

A client is a range of indices into one store of drawn images. For each number of clients, in a process of
its own: how long the partition takes to build, what it takes on disk, the time of a round, how much of the
CPU time is not the clients' training (checks, folding, averaging, evaluation, checkpoint; with workers also
tasks and answers), and memory of that process. Worker processes train while their parent checks and folds: of
such a round, it is also said how long the clients are done and only the server is at work.
Partitioning real labels is measured first: ``proxyfl.partition`` with four images per client, whose arrays
count in the peak. Prints the table and writes ``results/million.csv``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stage import MEGABYTE, drawn_simulation, resident, settings, staged

from proxyfl.core.machine import peak_memory
from proxyfl.core.state import Update
from proxyfl.data.partition import make_partition
from proxyfl.federation.client import ClientTrainer
from proxyfl.report import plot_style
from proxyfl.runs.directory import RunDirectory, read_json_lines

ROOT = Path(__file__).parents[1]
METHOD = "fedavg"
DEALT = 4
"""Images for each client where real labels are partitioned."""

COLUMNS = (
    "clients", "per round", "workers", "built from index ranges (s)", "partitioned (s)", "on disk (MB)",
    "start-up (s)", "steps per client", "wall time per round (s)", "CPU time per round (s)",
    "server share (%)", "server alone (%)", "resident (MB)", "peak (MB)",
)  # fmt: skip


class Trained:
    """Adds up the CPU time of clients' training."""

    def __init__(self, trainer: ClientTrainer, steps: int) -> None:
        self.train, self.steps, self.spent = trainer.train, steps, 0.0

    def __call__(self, *given: Any, **named: Any) -> Update:
        began = time.process_time()
        update = self.train(*given, **named)
        assert update.metrics["steps"] == self.steps
        self.spent += time.process_time() - began
        return update


def dealing_time(clients: int) -> float:
    """Seconds of dealing labels out to so many clients, a tenth of them known."""
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 10, DEALT * clients))
    began = time.process_time()
    make_partition(labels, clients=clients, per_class=DEALT * clients // 100, scheme="iid")
    return time.process_time() - began


def measured(
    clients: int, per_round: int, rounds: int, steps: int, workers: int, folder: Path
) -> dict[str, float]:
    """One number of clients, in this process."""
    torch.set_num_threads(1)
    dealt = dealing_time(clients)
    began = time.process_time()
    simulation = drawn_simulation(clients, labelled=4, unlabelled=8, images=20_000, size=8)
    built = time.process_time() - began
    config = settings(
        METHOD, clients=clients, per_round=per_round, rounds=rounds + 1, dtype="fp32", train__epochs=steps,
        train__batch=8, keep__snapshot_every=0,
    )  # fmt: skip
    found = []
    with staged(folder / "run", config, simulation, workers) as stage:
        trained = Trained(stage.trainer, steps)
        if not workers:
            stage.trainer.train = trained  # type: ignore[method-assign]
        for turn in range(rounds + 1):
            trained.spent = -getattr(stage.federation.engine, "cpu_seconds", 0.0)
            here, clock = time.process_time(), time.perf_counter()
            stage.play()
            here, clock = time.process_time() - here, time.perf_counter() - clock
            trained.spent += getattr(stage.federation.engine, "cpu_seconds", 0.0)
            spent = here + trained.spent * bool(workers)
            alone = 1 - seconds_of_training(folder / "run") / clock
            if turn:
                found.append((clock, spent, 1 - trained.spent / spent, alone, resident()))
            else:
                ready = time.process_time() - began - here
    clock, spent, server, alone, held = (statistics.median(column) for column in zip(*found, strict=True))
    disk = (folder / "run" / "partition.safetensors").stat().st_size
    return {
        "built": built, "dealt": dealt, "disk": disk, "start": ready, "steps": steps, "clock": clock,
        "spent": spent, "server": server, "alone": alone, "workers": workers, "resident": held,
        "peak": peak_memory(),
    }  # fmt: skip


def seconds_of_training(run: Path) -> float:
    """From the beginning of the last round to its last answer."""
    return float(read_json_lines(RunDirectory(run).timing)[-1]["train"])


def row(clients: int, per_round: int, found: dict[str, float]) -> list[Any]:
    megabytes = [f"{found[name] / MEGABYTE:.1f}" for name in ("resident", "peak")]
    return [
        clients, per_round, found["workers"], f"{found['built']:.2f}", f"{found['dealt']:.2f}",
        f"{found['disk'] / MEGABYTE:.1f}", f"{found['start']:.1f}", found["steps"], f"{found['clock']:.2f}",
        f"{found['spent']:.2f}", f"{100 * found['server']:.1f}",
        f"{100 * found['alone']:.1f}" if found["workers"] else "", *megabytes,
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="1000,100000,1000000")
    parser.add_argument("--per-round", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count; one more warms up")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "million.csv")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        with tempfile.TemporaryDirectory(prefix="proxyfl-million-") as folder:
            numbers = options.per_round, options.rounds, options.steps, options.workers
            print(json.dumps(measured(options.one, *numbers, Path(folder))))
        return
    rows = []
    counts = [*map(int, options.clients.split(","))]
    for clients, steps, workers in [
        *((count, 1, 0) for count in counts),
        (counts[-1], 2, 0),
        (counts[-1], 1, 2),
    ]:
        call = [
            sys.executable,
            __file__,
            "--one",
            clients,
            "--steps",
            steps,
            "--workers",
            workers,
            "--per-round",
            options.per_round,
        ]
        done = subprocess.run(
            [*map(str, call), "--rounds", str(options.rounds)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        rows.append(row(clients, options.per_round, json.loads(done.stdout.splitlines()[-1])))
        print(", ".join(f"{head}: {cell}" for head, cell in zip(COLUMNS, rows[-1], strict=True)), flush=True)
    plot_style.save_csv(options.results, COLUMNS, rows)


if __name__ == "__main__":
    main()
