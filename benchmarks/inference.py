"""What an honest but curious server learns about a client's labels from what the client uploads.

    python benchmarks/inference.py [--seeds 3]

ProxyFL on digits, 20 clients, all in each of 3 rounds. The server guesses a client's shares of classes from

    counts        the class counts that the prior sends, divided by their sum
    bias          the change of the classifier's bias: its gradient is the mean prediction minus the share
    rows, fitted  the changes of bias, row length and row sum, by a ridge regression that was fitted on the
                  other clients (a server that knows some clients' labels)
    uniform       nothing: every class alike

and is compared with the truth by the total-variation distance (0: exact) and the rank correlation over
classes (1: the right order). Writes ``results/inference.csv``.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from stage import assemble, run_rounds

from proxyfl.core.state import Tensors, Update
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import RoundReport
from proxyfl.report import plot_style
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import Simulation, prepare

ROOT = Path(__file__).parents[1]
ROUNDS, RIDGE = 3, 1e-2
ALPHAS = (0.1, 1.0)
SHOWN = (1, 3)
GUESSES = ("uniform", "bias", "rows, fitted", "counts")

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What one client's update shows: its class counts and, per class, changes of the classifier."""

    client: int
    counts: Numbers
    changes: Numbers


class Curious:
    """An observer that keeps what a server sees of every update."""

    def __init__(self, weights: Tensors) -> None:
        self.weights, self.rounds = weights, [[]]  # type: tuple[Tensors, list[list[Seen]]]

    def round_started(self, round: int, clients: list[int]) -> None: ...

    def answered(self, answer: Any) -> None:
        if isinstance(answer, Update):
            self.rounds[-1].append(self.look(answer))

    def round_finished(self, report: RoundReport) -> None:
        self.weights = report.state.weights
        self.rounds.append([])

    def look(self, update: Update) -> Seen:
        old, new = (
            {name: each[f"classifier.{name}"].double().numpy() for name in ("weight", "bias")}
            for each in (self.weights, update.weights)
        )
        lengths = np.linalg.norm(new["weight"], axis=1) - np.linalg.norm(old["weight"], axis=1)
        sums = (new["weight"] - old["weight"]).sum(1)
        changes = np.stack([new["bias"] - old["bias"], lengths, sums], 1)
        return Seen(update.client, update.extras["prior/counts"].double().numpy(), changes)


def watched(alpha: float, seed: int, folder: Path) -> tuple[Simulation, list[list[Seen]]]:
    """A run as the server sees it, and the truth."""
    short = {
        "clients": 20, "per_round": 20, "rounds": ROUNDS, "seed": seed, "alpha": alpha, "dtype": "fp32",
        "partition__seed": seed, "keep__snapshot_every": 0,
    }  # fmt: skip
    config = resolve("digits", from_short(short), {"method": {"name": "proxyfl"}})
    simulation = prepare(config)
    federation, trainer = assemble(folder, config, simulation, workers=0)
    state = federation.start(trainer.initial_weights())
    curious = Curious(state.weights)
    with numerics(config.compute):
        run_rounds(federation, state, [curious])
    return simulation, curious.rounds[:ROUNDS]


def shares(values: Numbers) -> Numbers:
    """Non-negative numbers that add up to one."""
    values = np.clip(values, 0, None)
    return values / values.sum() if values.sum() else np.full(len(values), 1 / len(values))


def truth(simulation: Simulation, client: int, *, everything: bool) -> Numbers:
    """A client's shares of classes: of its labelled images, or of all."""
    partition, labels = simulation.partition, simulation.dataset.train.labels.numpy()
    held = [partition.labelled[client]] + ([partition.unlabelled[client]] if everything else [])
    return shares(np.bincount(labels[np.concatenate(held)], minlength=10).astype(float))


def fitted(seen: list[Seen], actual: dict[int, Numbers], client: int) -> Numbers:
    """Ridge regression from a class's changes, standardised in each client, to its share."""

    def features(each: Seen) -> Numbers:
        spread = each.changes.std(0) + 1e-12
        return np.column_stack([(each.changes - each.changes.mean(0)) / spread, np.ones(len(each.changes))])

    others = [each for each in seen if each.client != client]
    x = np.concatenate([features(each) for each in others])
    y = np.concatenate([actual[each.client] for each in others])
    slope = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
    return shares(features(next(each for each in seen if each.client == client)) @ slope)


def guess(how: str, seen: list[Seen], actual: dict[int, Numbers], client: int) -> Numbers:
    mine = next(each for each in seen if each.client == client)
    if how == "counts":
        return shares(mine.counts)
    if how == "bias":
        return shares(mine.changes[:, 0] - mine.changes[:, 0].min())
    if how == "rows, fitted":
        return fitted(seen, actual, client)
    return np.full(len(mine.counts), 1 / len(mine.counts))


def distance(one: Numbers, other: Numbers) -> float:
    return float(np.abs(one - other).sum() / 2)


def rank_correlation(one: Numbers, other: Numbers) -> float:
    """Spearman's, zero where all values of one are alike."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "inference.csv")
    options = parser.parse_args()
    found: dict[tuple[Any, ...], list[tuple[float, ...]]] = defaultdict(list)
    for alpha, seed in itertools.product(ALPHAS, range(1, options.seeds + 1)):
        with tempfile.TemporaryDirectory(prefix="proxyfl-inference-") as folder:
            simulation, rounds = watched(alpha, seed, Path(folder))
        for round, how in itertools.product(SHOWN, GUESSES):
            seen = rounds[round - 1]
            labelled = {each.client: truth(simulation, each.client, everything=False) for each in seen}
            for client, actual in labelled.items():
                guessed = guess(how, seen, labelled, client)
                whole = truth(simulation, client, everything=True)
                values = (
                    distance(guessed, actual),
                    rank_correlation(guessed, actual),
                    distance(guessed, whole),
                )
                found[alpha, round, how].append(values)
    rows = []
    for (alpha, round, how), values in found.items():
        cells = [f"{statistics.mean(column):.2f}" for column in zip(*values, strict=True)]
        rows.append([f"{alpha:g}", round, how, *cells])
        print(*rows[-1])
    heads = (
        "α",
        "round",
        "read",
        "distance to labelled shares",
        "rank correlation",
        "distance to all shares",
    )
    plot_style.save_csv(options.out, heads, rows)


if __name__ == "__main__":
    main()
