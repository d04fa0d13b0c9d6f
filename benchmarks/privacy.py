"""What differential privacy of whole clients costs: accuracy against epsilon, with 10,000 clients and 20.

    python benchmarks/privacy.py [--seeds 3] [--share 1/2]

Digits, whose 1,437 training images are dealt to clients as overlapping ranges (8 with labels, 16 without), a
network of 2,410 weights, since noise grows with the root of their number, and Poisson sampling of 1 % of the
clients in each of 30 rounds. The same with 20 clients shows why so few cannot be private. Runs that are in
``results/privacy-runs.csv`` are not made again. Writes ``results/privacy.csv``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import tempfile
from collections import defaultdict
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from attacks import Accuracies, remember
from stage import assemble, run_rounds
from torch import Tensor, nn

from proxyfl import models
from proxyfl.aggregation.build import site_aggregator
from proxyfl.core.config import Config
from proxyfl.core.rng import SERVER, numpy_rng
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged
from proxyfl.federation.client import numerics
from proxyfl.report import plot_style
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import Simulation, prepare

ROOT = Path(__file__).parents[1]
ROUNDS, LAST, CLIP, DELTA = 30, 5, 0.5, 1e-5
LABELLED, UNLABELLED = 8, 16
METHODS = ("fedavg", "fixmatch-gpl")
FEDERATIONS = {10_000: 100, 20: 8}
"""Registered clients, and how many of them take part in a round on average."""
NOISES = (0.0, 0.5, 1.0, 2.0, 4.0)
COLUMNS = ("method", "clients", "noise", "seed", "accuracy")


@models.register("small")
class Small(nn.Module):
    """One hidden layer of 32 on digits of 8×8, without batch norm."""

    def __init__(self, classes: int, channels: int = 1, width: int = 1) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 32 * width), nn.ReLU())
        self.classifier = nn.Linear(32 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.trunk(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


@dataclass(frozen=True)
class Case:
    """One run; without noise there is no clipping either."""

    method: str
    clients: int
    noise: float
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(map(str, astuple(self)))

    @property
    def config(self) -> Config:
        short = {
            "clients": self.clients, "per_round": FEDERATIONS[self.clients], "rounds": ROUNDS,
            "seed": self.seed, "dtype": "fp32", "model__name": "small", "width": 1,
            "train__epochs": 1, "train__batch": 8, "train__lr": 0.1, "keep__snapshot_every": 0,
            "federation__weighting": "uniform", "federation__sampling": "poisson",
        }  # fmt: skip
        privacy = {"clip": CLIP, "noise": self.noise, "delta": DELTA} if self.noise else {}
        layer = {"privacy": privacy, "labels": {"ratio": 0.5}, "method": {"name": self.method}}
        return resolve("digits", from_short(short), layer)


def overlapping(simulation: Simulation, clients: int, seed: int) -> Simulation:
    """The labelled and the unlabelled images, shuffled, and a range of either for every client."""
    parts = []
    for name, whole, length in (
        ("labelled", simulation.partition.labelled, LABELLED),
        ("unlabelled", simulation.partition.unlabelled, UNLABELLED),
    ):
        order = numpy_rng(seed, 0, SERVER, name).permutation(np.concatenate([whole[k] for k in range(20)]))
        starts = np.arange(clients, dtype=np.int64) * 7 % (len(order) - length + 1)
        parts.append(Ragged(order, starts, starts + length))
    return replace(simulation, partition=Partition(*parts))


def simulated(case: Case) -> Simulation:
    twenty = replace(case.config, partition=replace(case.config.partition, clients=20, scheme="iid"))
    return overlapping(prepare(twenty), case.clients, case.seed)


def accuracy(case: Case, folder: Path) -> float:
    """The mean of the last rounds' test accuracy."""
    config, told = case.config, Accuracies()
    federation, trainer = assemble(folder, config, simulated(case), workers=0)
    with numerics(config.compute):
        run_rounds(federation, federation.start(trainer.initial_weights()), [told])
    return statistics.mean(told.values[-LAST:])


def known(path: Path) -> dict[tuple[str, ...], float]:
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[name] for name in COLUMNS[:-1]): float(row["accuracy"]) for row in rows}


def epsilon(case: Case, sampling: str) -> str:
    if not case.noise:
        return "∞"
    federation = replace(case.config.federation, sampling=sampling)
    holders = len(simulated(case).population.holders)
    spent = site_aggregator(case.config.privacy).spent(ROUNDS, federation, holders)
    return f"{spent['epsilon']:.2f}"


def write(found: dict[tuple[str, ...], float], out: Path) -> None:
    by_case: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for key, value in found.items():
        by_case[key[:-1]].append(100 * value)
    rows = []
    for clients, noise in itertools.product(FEDERATIONS, NOISES):
        case = Case(METHODS[0], clients, noise, 1)
        cells = []
        for method in METHODS:
            values = by_case[(method, str(clients), str(noise))]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}" if values else "–")
        rows.append([clients, f"{noise:g}", epsilon(case, "poisson"), epsilon(case, "stream"), *cells])
    heads = ("clients", "noise", "ε, Poisson sampling", "ε, fixed-size sampling")
    plot_style.save_csv(out, (*heads, *(f"{method} (%)" for method in METHODS)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", default="1/1", help="which of how many processes this one is")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    record = options.results / "privacy-runs.csv"
    mine, of = map(int, options.share.split("/"))
    seeds = range(1, options.seeds + 1)
    cases = [Case(*point) for point in itertools.product(METHODS, FEDERATIONS, NOISES, seeds)]
    for case in sorted(cases, key=lambda case: case.seed)[mine - 1 :: of]:
        if case.key not in known(record):
            with tempfile.TemporaryDirectory(prefix="proxyfl-privacy-") as folder:
                value = accuracy(case, Path(folder))
            remember(record, COLUMNS, case.key, value)
            print(*case.key, f"{100 * value:.1f} %", flush=True)
    write(known(record), options.results / "privacy.csv")


if __name__ == "__main__":
    main()
