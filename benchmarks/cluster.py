"""What a task costs beside its training: in this process, in a worker process, by an actor on a Ray cluster.

    python benchmarks/cluster.py [--clients 100] [--repeats 2] [--csv results/cluster.csv]

Every client takes one step with eight images of 8 × 8, so that little but the framework is measured; one
worker or actor, so that nothing happens at the same time. Rounds of the engines take turns. By the clock, it
is the median time from one answer to the next; CPU time, which other work on the machine hardly
changes, is the mean of a client: in the process that plays the rounds, and in the one that trains. A second
network is larger, to show what bytes cost. Start-up is from nothing to the first answer, the cluster's own
included.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from stage import drawn_simulation, settings

from proxyfl import RayEngine
from proxyfl.core.config import Config
from proxyfl.core.state import Failure, Task, Tensors, Update, size_in_bytes
from proxyfl.engines.choose import EngineFactory
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.pool import PoolEngine
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import Engine
from proxyfl.runs import build

ENGINES: dict[str, EngineFactory] = {
    "this process": InlineEngine.over,
    "a worker process": lambda trainer, holdings: PoolEngine(trainer, holdings, 1),
    "an actor on Ray": RayEngine("local", workers=1),
}
WIDTHS = (1, 4)
COLUMNS = (
    "network",
    "bytes each way",
    "engine",
    "start-up (s)",
    "wall time per client (ms)",
    "CPU time of the coordinator (ms)",
    "CPU time of the training process (ms)",
)


@dataclass
class Measured:
    """One engine's times."""

    engine: Engine
    start: float
    spent: list[float] = field(default_factory=list)
    here: float = 0.0
    there: float = 0.0

    def play(self, round: Iterable[Task]) -> None:
        here, there = time.process_time(), getattr(self.engine, "cpu_seconds", 0.0)
        self.spent += intervals(self.engine.run(round))
        self.here += time.process_time() - here
        self.there += getattr(self.engine, "cpu_seconds", 0.0) - there

    def row(self, clients: int) -> dict[str, object]:
        """What it took for so many clients, in milliseconds a client."""
        amounts = (1e3 * statistics.median(self.spent), *(1e3 * n / clients for n in (self.here, self.there)))
        return dict(zip(COLUMNS[3:], (f"{self.start:.1f}", *(f"{n:.1f}" for n in amounts)), strict=True))


def tasks(config: Config, weights: Tensors, round: int) -> Iterator[Task]:
    extras: Tensors = {}
    for client in range(config.partition.clients):
        yield Task(round, client, weights, extras)


def intervals(answers: Iterator[Update | Failure]) -> Iterator[float]:
    """The seconds from each answer to the next."""
    before = None
    for answer in answers:
        if isinstance(answer, Failure):
            raise SystemExit(f"client {answer.client} failed: {answer.reason}")
        now = time.perf_counter()
        if before is not None:
            yield now - before
        before = now


def measure(width: int, clients: int, repeats: int, folder: Path) -> list[dict[str, object]]:
    """The rows of one network."""
    options = {"clients": clients, "per_round": clients, "rounds": repeats, "width": width, "dtype": "fp32"}
    config = settings("fedavg", **options, train__epochs=1, train__batch=8)
    simulation = drawn_simulation(clients, labelled=8, unlabelled=0, images=2_000, size=8)
    found: dict[str, Measured] = {}
    with ExitStack() as stack:
        stack.enter_context(numerics(config.compute))
        for name, factory in ENGINES.items():
            began = time.perf_counter()
            federation = build.assemble(config, simulation, engine=factory)
            federation.settle(folder / name)
            weights = federation.trainer.initial_weights()
            engine = stack.enter_context(closing(federation.server.engine))
            list(engine.run([next(tasks(config, weights, 1))]))
            found[name] = Measured(engine, time.perf_counter() - began)
        for round in range(1, repeats + 1):
            for one in found.values():
                one.play(tasks(config, weights, round))
    network = {"network": f"ResNet-8, width {width}", "bytes each way": size_in_bytes(weights)}
    return [{**network, "engine": name, **one.row(clients * repeats)} for name, one in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--csv", type=Path, help="write the table to this file, too")
    chosen = parser.parse_args()
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="proxyfl-cluster-") as folder:
        for width in WIDTHS:
            rows += measure(width, chosen.clients, chosen.repeats, Path(folder) / str(width))
    for row in [dict(zip(COLUMNS, COLUMNS, strict=True)), *rows]:
        print("  ".join(f"{row[name]!s:>{max(18, len(name))}}" for name in COLUMNS))
    if chosen.csv:
        with chosen.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
