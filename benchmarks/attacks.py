"""What hostile clients do to accuracy, and what robust aggregation does about it.

    python benchmarks/attacks.py [--seeds 2] [--share 1/2]

ProxyFL on digits, 20 clients that all take part in every round; 0, 10, 20 or 30 % of them attack in every
round. Every defence is told that 30 % may be hostile. Runs that are in ``results/attacks-runs.csv`` are not
made again, so a benchmark that was stopped goes on; ``--share`` makes every n-th run, for several processes.
Only seeds of which every run is made count.
Writes ``results/attacks.csv`` (a row per attack and share, a column per defence), ``results/attacks-gpt.csv``
(proxy poisoning with and without GPT) and ``docs/images/attacks.png`` (and ``.svg``).

    python benchmarks/attacks.py --rows

takes one round's honest classifiers, lets some clients poison theirs, and compares how far the mean and the
tuned proxies are moved towards the wrong classes: ``results/attacks-rows.csv``, in two minutes.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import itertools
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from stage import assemble, run_rounds
from torch import Tensor

from proxyfl.core.config import Config
from proxyfl.core.rng import SERVER, numpy_rng
from proxyfl.core.state import Task, Tensors, Update
from proxyfl.engines.inline import InlineEngine
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import Engine, RoundReport
from proxyfl.methods.addons.gpt import tune_proxies
from proxyfl.report import plot_style
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import prepare
from proxyfl.testing.attacks import (
    CLASSIFIER,
    AttackedEngine,
    flip_labels,
    model_replacement,
    proxy_poisoning,
    sign_flip,
)

ROOT = Path(__file__).parents[1]
CLIENTS, ROUNDS, LAST = 20, 8, 2
ROWS_ROUNDS = (1, 4, 8)
SHARES = (0.0, 0.1, 0.2, 0.3)
DEFENCES: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip": {"clip": 1.0, "clip_by": "median"},
    "median": {"rule": "median"},
    "trimmed": {"rule": "trimmed", "hostile": 0.3},
    "krum": {"rule": "krum", "hostile": 0.3, "keep": 1},
    "multi-krum": {"rule": "krum", "hostile": 0.3},
}
ATTACKS = {
    "none": None,
    "label flip": None,
    "sign flip": sign_flip(1.0),
    "model replacement": model_replacement(CLIENTS),
    "proxy poisoning": proxy_poisoning(1.0),
    "proxy poisoning ×5": proxy_poisoning(5.0),
}
WITH_FLIPPED_LABELS = ("label flip", "model replacement")
GPT = {"proxyfl": "GPT and ICPL", "icpl-only": "ICPL, no GPT"}
WITHOUT_GPT = ["mean", "trimmed", "multi-krum"]
"""Defences under which proxy poisoning is tried with and without GPT."""
COLUMNS = ("method", "attack", "share", "defence", "seed", "accuracy")


@dataclass(frozen=True)
class Case:
    """One run: who attacks how, and what the server does about it."""

    method: str
    attack: str
    share: float
    defence: str
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(map(str, astuple(self)))


def cases(seeds: int) -> Iterator[Case]:
    """Honest runs first, then each attack; the second method last."""
    for seed, method in itertools.product(range(1, seeds + 1), GPT):
        main = method == "proxyfl"
        attacks = [name for name in ATTACKS if main or name.startswith(("none", "proxy"))]
        defences = list(DEFENCES) if main else WITHOUT_GPT
        for attack, share, defence in itertools.product(attacks, SHARES, defences):
            if (attack == "none") == (share == 0):
                yield Case(method, attack, share, defence, seed)


def settings_of(case: Case, per_round: int = CLIENTS, epochs: int = 1) -> Config:
    short = {
        "clients": CLIENTS, "per_round": per_round, "rounds": ROUNDS, "seed": case.seed, "dtype": "fp32",
        "train__epochs": epochs, "keep__snapshot_every": 0,
    }  # fmt: skip
    layer = {"aggregation": DEFENCES[case.defence], "method": {"name": case.method}}
    return resolve("digits", from_short(short), layer)


def accuracy(case: Case, folder: Path) -> float:
    """The mean of the last rounds' test accuracy."""
    config = settings_of(case)
    simulation = prepare(config)
    order = numpy_rng(case.seed, 0, SERVER, "attackers").permutation(CLIENTS)
    attackers = order[: round(case.share * CLIENTS)].tolist()
    federation, trainer = assemble(folder, config, simulation, workers=0)
    holdings = simulation.holdings
    if case.attack in WITH_FLIPPED_LABELS:
        holdings = flip_labels(holdings, attackers, federation.classes)
    engine: Engine = InlineEngine(trainer, holdings.client)
    if attack := ATTACKS[case.attack]:
        engine = AttackedEngine(engine, attack, attackers)
    federation.engine, told = engine, Accuracies()
    with numerics(config.compute):
        run_rounds(federation, federation.start(trainer.initial_weights()), [told])
    return statistics.mean(told.values[-LAST:])


class Accuracies:
    """An observer that writes down one number a round."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def round_started(self, round: int, clients: list[int]) -> None: ...

    def answered(self, answer: Any) -> None: ...

    def round_finished(self, report: Any) -> None:
        self.values.append(report.metrics["accuracy"])


def known(path: Path) -> dict[tuple[str, ...], float]:
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {
            tuple(row[name] for name in COLUMNS[:-1]): float(row["accuracy"]) for row in csv.DictReader(file)
        }


def remember(path: Path, columns: Sequence[str], key: Sequence[str], value: float) -> None:
    """A line more, also when several processes write."""
    with path.open("a", newline="", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = csv.writer(file, lineterminator="\n")
        if not file.tell():
            table.writerow(columns)
        table.writerow([*key, f"{value:.4f}"])


def percent(values: list[float]) -> str:
    return f"{100 * statistics.mean(values):.1f}" if values else "–"


def of_whole_seeds(found: dict[tuple[str, ...], float], seeds: int) -> dict[tuple[str, ...], float]:
    """What is known of seeds that are complete: a mean over other seeds in each cell says nothing."""
    lacking = {str(case.seed) for case in cases(seeds) if case.key not in found}
    return {key: value for key, value in found.items() if key[-1] not in lacking}


def write(found: dict[tuple[str, ...], float], results: Path) -> None:
    """The tables of the page, means over seeds in percent."""
    seeds = len({key[-1] for key in found})
    by_case: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for key, value in found.items():
        by_case[key[:-1]].append(value)

    def cell(method: str, attack: str, share: float, defence: str) -> str:
        return percent(by_case[(method, attack if share else "none", str(share), defence)])

    rows = []
    for attack in ATTACKS:
        for share in SHARES if attack == "none" else SHARES[1:]:
            if (attack == "none") == (share == 0):
                cells = [cell("proxyfl", attack, share, defence) for defence in DEFENCES]
                rows.append([attack, f"{100 * share:.0f}", *cells, seeds])
    plot_style.save_csv(results / "attacks.csv", ("attack", "attackers (%)", *DEFENCES, "seeds"), rows)
    rows = []
    for attack in (name for name in ATTACKS if name.startswith("proxy")):
        for share in SHARES:
            cells = [
                cell(method, attack, share, d) for d in ("mean", "trimmed", "multi-krum") for method in GPT
            ]
            rows.append([attack, f"{100 * share:.0f}", *cells, seeds])
    heads = [f"{defence}, {words}" for defence in WITHOUT_GPT for words in GPT.values()]
    plot_style.save_csv(results / "attacks-gpt.csv", ("attack", "attackers (%)", *heads, "seeds"), rows)


def draw(results: Path, path: Path) -> None:
    """A panel per attack: accuracy over the share of attackers, a line per defence."""
    with (results / "attacks.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    honest = next(row for row in rows if row["attack"] == "none")
    attacks = [name for name in ATTACKS if name != "none"]
    figure = plot_style.new_figure(14.5, 3.6)
    panels = figure.subplots(1, len(attacks), sharey=True)
    spare = [
        plot_style.BLACK,
        plot_style.ORANGE,
        plot_style.SKY,
        plot_style.GREEN,
        plot_style.VERMILLION,
        plot_style.PURPLE,
    ]
    for axes, attack in zip(panels, attacks, strict=True):
        mine = [honest, *(row for row in rows if row["attack"] == attack)]
        for (defence, marker), colour in zip(zip(DEFENCES, "oDs^vP", strict=True), spare, strict=True):
            points = [(row["attackers (%)"], row[defence]) for row in mine if row[defence] != "–"]
            shares, values = [float(a) for a, _ in points], [float(b) for _, b in points]
            axes.plot(shares, values, color=colour, marker=marker, linewidth=1.8, label=defence)
        axes.set_ylim(0, 100)
        axes.set_xticks([100 * share for share in SHARES])
        plot_style.dress(axes, title=attack, x="attackers (%)", grid="y")
    panels[0].set_ylabel("test accuracy (%)", fontsize=plot_style.TEXT)
    lines, names = panels[0].get_legend_handles_labels()
    figure.legend(
        lines, names, title="defence", loc="outside right upper", fontsize=plot_style.TEXT, frameon=False
    )
    plot_style.save(figure, path)


class Classifiers(Accuracies):
    """An observer that keeps the updates of some rounds and the weights they started from."""

    def __init__(self, weights: Tensors) -> None:
        super().__init__()
        self.weights, self.updates = weights, list[Update]()
        self.kept: dict[int, tuple[Tensors, list[Update]]] = {}

    def answered(self, answer: Any) -> None:
        self.updates.append(answer)

    def round_finished(self, report: RoundReport) -> None:
        if report.state.round in ROWS_ROUNDS:
            self.kept[report.state.round] = (self.weights, self.updates)
        self.weights, self.updates = report.state.weights, []


def shifts(old: Tensors, updates: list[Update], attackers: int, strength: float) -> tuple[float, float]:
    """How far poisoned rows move the mean, and the proxies tuned from it, towards the next classes' rows."""
    poison, task = proxy_poisoning(strength), Task(0, 0, old)
    rows = torch.stack([update.weights[CLASSIFIER] for update in updates])
    bad = torch.stack([poison(update, task).weights[CLASSIFIER] for update in updates[:attackers]])
    poisoned = torch.cat([bad, rows[attackers:]])
    aim = old[CLASSIFIER].roll(-1, 0) - old[CLASSIFIER]

    def tuned(local: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(1)
        return tune_proxies(local.mean(0), local, epochs=100, lr=0.005, batch=4, generator=draw)

    moved = poisoned.mean(0) - rows.mean(0), tuned(poisoned) - tuned(rows)
    return tuple(float((move * aim).sum() / aim.norm()) for move in moved)  # type: ignore[return-value]


def poison_rows(seeds: int, results: Path) -> None:
    """GPT alone: the same honest classifiers, some of them poisoned, averaged and tuned."""
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for (clients, epochs), seed in itertools.product(((CLIENTS, 1), (8, 5)), range(1, seeds + 1)):
        config = settings_of(Case("proxyfl", "none", 0.0, "mean", seed), clients, epochs)
        with tempfile.TemporaryDirectory(prefix="proxyfl-attacks-") as folder:
            federation, trainer = assemble(folder, config, prepare(config), workers=0)
            told = Classifiers(trainer.initial_weights())
            with numerics(config.compute):
                run_rounds(federation, federation.start(told.weights), [told])
        for number, (old, updates) in told.kept.items():
            for strength, share in itertools.product((1.0, 5.0), SHARES[1:]):
                count = math.ceil(share * clients)
                key = clients, epochs, number, strength, count
                found[key].append(shifts(old, updates, count, strength))
    rows = []
    for (clients, epochs, number, strength, count), values in found.items():
        mean, tuned = (statistics.mean(column) for column in zip(*values, strict=True))
        moved = [f"{mean:.2f}", f"{tuned:.2f}"]
        rows.append([epochs, number, f"{strength:g}", f"{count} of {clients}", *moved])
    heads = ("local epochs", "round", "strength", "attackers", "mean moves by", "tuned proxies move by")
    plot_style.save_csv(results / "attacks-rows.csv", heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--share", default="1/1", help="which of how many processes this one is")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "attacks.png")
    parser.add_argument("--rows", action="store_true", help="only what GPT makes of poisoned rows")
    options = parser.parse_args()
    if options.rows:
        poison_rows(options.seeds, options.results)
        return
    record = options.results / "attacks-runs.csv"
    mine, of = map(int, options.share.split("/"))
    for case in list(cases(options.seeds))[mine - 1 :: of]:
        if case.key not in known(record):
            with tempfile.TemporaryDirectory(prefix="proxyfl-attacks-") as folder:
                value = accuracy(case, Path(folder))
            remember(record, COLUMNS, case.key, value)
            print(*case.key, f"{100 * value:.1f} %", flush=True)
    write(of_whole_seeds(known(record), options.seeds), options.results)
    draw(options.results, options.picture)


if __name__ == "__main__":
    main()
