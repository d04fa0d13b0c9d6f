"""Does a round cost more when more clients are registered? 200 to 100,000 of them, 50 in each round.

    python benchmarks/scale.py [--rounds 5] [--methods proxyfl,fedloke]

All clients hold equally many images of the same store, so the work of a round is the same and only the
framework's share can differ. Every client has taken part before: whatever is kept per client is there for
all of them. Each size is a process of its own with a real run directory; sizes take turns round by round,
and times are compared within a turn, because machines are noisy. Prints ratios to the smallest size, writes
``results/scale.csv`` and ``docs/images/scale.png`` (and ``.svg``).
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
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stage import MEGABYTE, Stage, drawn_simulation, resident, settings, staged
from torch import Tensor

from proxyfl.core.machine import peak_memory
from proxyfl.core.state import Tensors, size_in_bytes
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.sampling import sample_clients
from proxyfl.report import plot_style

ROOT = Path(__file__).parents[1]
SIZES = (200, 2_000, 20_000, 100_000)
PER_ROUND = 50
LIMIT = 1.1
"""How much more than with the smallest number of clients a round may take."""

COLUMNS = ("method", "clients", "seconds", "time_ratio", "cpu_seconds", "cpu_ratio", "resident_mb",
           "resident_ratio", "above_start_mb", "above_start_ratio", "peak_mb",
           "peak_ratio", "loaded_kb", "saved_kb")  # fmt: skip


class CountedStore(ClientStore):
    """A store that adds up the bytes of what it is asked to load and save."""

    loaded = saved = 0

    def load(self, client: int, round: int) -> Tensors:
        tensors = super().load(client, round)
        self.loaded += size_in_bytes(tensors)
        return tensors

    def save(self, client: int, round: int, tensors: Mapping[str, Tensor], base: int = 0) -> None:
        self.saved += size_in_bytes(tensors)
        super().save(client, round, tensors, base)


def serve(method: str, clients: int, rounds: int, folder: Path) -> None:
    """The process of one size: a line on standard input asks for a round, one on standard output answers."""
    start = resident()
    config = settings(
        method, clients=clients, per_round=PER_ROUND, rounds=rounds + 2, dtype="fp32", keep__snapshot_every=0,
        train__epochs=1, train__batch=8,
    )  # fmt: skip
    simulation = drawn_simulation(clients, labelled=4, unlabelled=8, images=20_000, size=8)
    with staged(folder, config, simulation, workers=0) as stage:
        store = CountedStore(stage.trainer.store.folder, stage.trainer.store.versions)
        stage.trainer.store = store
        stage.play()
        if stage.federation.method.keeps_state:
            acquaint(stage, clients)
        for _ in sys.stdin:
            store.loaded = store.saved = 0
            wall, cpu = time.perf_counter(), time.process_time()
            stage.play()
            answer = {
                "seconds": time.perf_counter() - wall,
                "cpu": time.process_time() - cpu,
                "resident": resident(),
                "above": resident() - start,
                "peak": peak_memory(),
                "loaded": store.loaded,
                "saved": store.saved,
            }
            print(json.dumps(answer), flush=True)


def acquaint(stage: Stage, clients: int) -> None:
    """As if every client had taken part in the round just played: one client's state for all the others.

    Only the files that coming rounds will ask for are made: who that is can be known beforehand.
    """
    server, population = stage.federation, stage.federation.population
    round, store = stage.state.round, stage.trainer.store
    tensors = store.load(next(iter(stage.state.versions)), round)
    later = range(round + 1, server.settings.rounds + 1)
    coming = {
        client for turn in later for client in sample_clients(server.settings, server.seed, turn, population)
    }
    for client in coming - stage.state.versions.keys():
        store.save(client, round, tensors)
    stage.state = replace(stage.state, versions=dict.fromkeys(range(clients), round))


class Hall:
    """The process of one size, as the process that compares them sees it."""

    def __init__(self, method: str, clients: int, rounds: int, folder: Path) -> None:
        given = ["--serve", method, str(clients), str(folder), "--rounds", str(rounds)]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Hall:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def play(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("round\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a benchmark process ended with exit code {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


@dataclass
class Measured:
    """What the rounds of one size gave."""

    rounds: list[dict[str, float]]

    def median(self, name: str) -> float:
        return statistics.median(round[name] for round in self.rounds)

    def ratio(self, name: str, to: Measured) -> float:
        """The median over turns of this size's value by the other's in the same turn."""
        pairs = zip(self.rounds, to.rounds, strict=True)
        return statistics.median(mine[name] / other[name] for mine, other in pairs)


def measure(method: str, sizes: tuple[int, ...], rounds: int, folder: Path) -> dict[int, Measured]:
    """All sizes of one method, taking turns. The first turn warms up and does not count."""
    found: dict[int, Measured] = {size: Measured([]) for size in sizes}
    with ExitStack() as stack:
        halls = {
            size: stack.enter_context(Hall(method, size, rounds, folder / f"{method}-{size}"))
            for size in sizes
        }
        for turn in range(rounds + 1):
            order = sizes[turn % len(sizes) :] + sizes[: turn % len(sizes)]
            for size in order:
                answer = halls[size].play()
                if turn:
                    found[size].rounds.append(answer)
    return found


def rows_of(method: str, found: dict[int, Measured]) -> list[list[Any]]:
    """The lines of the table, as ``COLUMNS`` names them."""
    rows = []
    least = found[min(found)]
    for size, measured in found.items():
        rows.append([
            method, size,
            f"{measured.median('seconds'):.4g}", f"{measured.ratio('seconds', least):.3f}",
            f"{measured.median('cpu'):.4g}", f"{measured.ratio('cpu', least):.3f}",
            f"{measured.median('resident') / MEGABYTE:.1f}", f"{measured.ratio('resident', least):.3f}",
            f"{measured.median('above') / MEGABYTE:.1f}", f"{measured.ratio('above', least):.3f}",
            f"{measured.rounds[-1]['peak'] / MEGABYTE:.1f}", f"{measured.ratio('peak', least):.3f}",
            f"{measured.median('loaded') / 1024:.1f}", f"{measured.median('saved') / 1024:.1f}",
        ])  # fmt: skip
    return rows


def show(rows: list[list[Any]]) -> None:
    heads = ("clients", "s/round", "×", "cpu s", "×", "MB", "×", "above", "×", "peak", "×", "kB in", "kB out")
    for name, *cells in (("method", *heads), *rows):
        print(f"{name:10}" + "".join(f"{cell:>9}" for cell in cells))
    for name in ("time_ratio", "resident_ratio", "above_start_ratio", "peak_ratio"):
        worst = max(float(row[COLUMNS.index(name)]) for row in rows)
        verdict = "within" if worst <= LIMIT else "BEYOND"
        print(f"{name}: at most {worst:.3f}, {verdict} {LIMIT}")


def draw(rows: list[list[Any]], path: Path) -> None:
    """Time and memory of a round beside those with the fewest clients, over the number registered."""
    figure = plot_style.new_figure(9, 4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, title in zip(panels, ("time_ratio", "resident_ratio"),
                                 ("Time per round", "Resident memory"), strict=True):  # fmt: skip
        for method, look in plot_style.looks(dict.fromkeys(row[0] for row in rows)).items():
            mine = [row for row in rows if row[0] == method]
            axes.plot(
                [row[1] for row in mine], [float(row[COLUMNS.index(name)]) for row in mine],
                color=look.colour, linestyle=look.line, marker=look.marker, linewidth=look.width,
                markersize=look.size, label=method,
            )  # fmt: skip
        axes.axhline(LIMIT, color=plot_style.MUTED, linewidth=1, linestyle=plot_style.DASHED)
        axes.set_xscale("log")
        axes.set_xticks([row[1] for row in mine], [f"{row[1]:,}" for row in mine])
        axes.minorticks_off()
        axes.set_ylim(0, 1.3)
        plot_style.dress(axes, title=title, x="registered clients", grid="y")
    panels[0].set_ylabel(f"ratio to {min(row[1] for row in rows):,} clients", fontsize=plot_style.TEXT)
    panels[0].legend(frameon=False, fontsize=plot_style.SMALL + 1, loc="lower left")
    panels[1].annotate(f"{LIMIT}", (1, LIMIT), xycoords=("axes fraction", "data"), va="bottom", ha="right",
                       color=plot_style.MUTED, fontsize=plot_style.SMALL)  # fmt: skip
    plot_style.note(figure, f"{PER_ROUND} clients of equal size in every round, all over one store of images")
    plot_style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each size that count")
    parser.add_argument("--methods", default="proxyfl,fedloke", help="one without and one with client state")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "scale.csv")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "scale.png")
    parser.add_argument("--serve", nargs=3, metavar=("METHOD", "CLIENTS", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        method, clients, folder = options.serve
        serve(method, int(clients), options.rounds, Path(folder))
        return
    sizes = tuple(int(size) for size in options.sizes.split(","))
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="proxyfl-scale-") as folder:
        for method in options.methods.split(","):
            rows += rows_of(method, measure(method, sizes, options.rounds, Path(folder)))
    show(rows)
    plot_style.save_csv(options.results, COLUMNS, rows)
    draw(rows, options.picture)


if __name__ == "__main__":
    main()
