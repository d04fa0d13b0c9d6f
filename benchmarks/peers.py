"""The same FedAvg work in proxyfl, in Flower's simulation, in pfl-research and in a plain loop.

    python benchmarks/peers.py [--place build/peers] [--repeats 3] [--rounds 5] [--data-root DATA]

Makes an environment below ``--place`` for each peer, with this project's torch; proxyfl and the plain loop
run in the Python that runs this script. All train proxyfl's ResNet-8 at width 1 on images of 16 × 16 (drawn
ones, or CIFAR-10 below ``--data-root``) with every label, the same views and the same schedule, in two sizes:
real work, and framework only, where a client takes one step. "Tuned" is channels-last, and bf16 where the
processor has it, written by hand where a framework does not do it. Each measurement is a process of its own;
they take turns, and ratios are taken within a turn, because machines are noisy. The first round does not
count: what it takes beyond the others is start-up. Memory is that of all processes together. Prints the table
and writes ``results/peers.csv`` and ``docs/images/peers.png`` (and ``.svg``).

``--quick`` is a smoke test with tiny sizes; ``--here`` makes no environment and measures what is installed;
``--draw`` measures nothing and draws the picture from the results.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import NamedTuple

from peers_work import Size, Work, dealt, drawn, memory

from proxyfl.data import sources
from proxyfl.report import plot_style

ROOT = Path(__file__).parents[1]
SIDE = 16
TEST_IMAGES = 2_000
SIZES = {
    "real work": Size(clients=20, per_round=8, held=500, batch=32, images=10_000),
    "framework only": Size(clients=1_000, per_round=100, held=64, batch=64, images=10_000),
}
QUICK = {
    "real work": Size(clients=4, per_round=2, held=40, batch=8, images=160),
    "framework only": Size(clients=20, per_round=4, held=8, batch=8, images=160),
}
LOOK_EVERY = 0.5
"""Seconds between two looks at the memory of a measurement."""

LONGEST = 1_800
"""Seconds after which a measurement is given up."""

COLUMNS = (
    "size",
    "who",
    "a round (s)",
    "ratio to the tuned loop",
    "clients a second",
    "CPU time per round (s)",
    "start-up (s)",
    "memory (MB)",
    "accuracy (%)",
    "note",
)


class Environment(NamedTuple):
    """What a peer needs. Packages it wants in another version than ours are ``free`` of our pins."""

    module: str
    requirements: tuple[str, ...]
    free: tuple[str, ...]


ENVIRONMENTS = {
    "flower": Environment("flwr", ("flwr[simulation]",), ("ray",)),
    "pfl": Environment("pfl", ("pfl==0.5.1",), ("absl-py", "attrs")),
}


class Peer(NamedTuple):
    """A row of the table; ``environment`` is empty for what runs in this Python."""

    name: str
    title: str
    environment: str = ""
    processes: int = 1
    needs: str = "torch"


TUNED = "plain-tuned"
PEERS = (
    Peer("proxyfl", "proxyfl, inline"),
    Peer("proxyfl-2", "proxyfl, 2 workers"),
    Peer("proxyfl-ray", "proxyfl, 2 actors on Ray", needs="ray"),
    Peer("flower", "Flower, 2 actors", "flower"),
    Peer("flower-tuned", "Flower, 2 actors, tuned", "flower"),
    Peer("pfl", "pfl-research", "pfl"),
    Peer("pfl-tuned", "pfl-research, tuned", "pfl"),
    Peer("pfl-2", "pfl-research, 2 processes, tuned", "pfl", processes=2),
    Peer("plain", "plain loop, 1 thread"),
    Peer("plain-2", "plain loop, 2 threads"),
    Peer(TUNED, "plain loop, 1 thread, tuned"),
)


class Missing(Exception):
    """A peer that cannot be measured, and why."""


class Measured(NamedTuple):
    """One measurement; ``seconds`` and ``processor`` by round, without the first."""

    seconds: list[float]
    processor: list[float]
    start: float
    memory: int
    accuracy: float
    version: str

    @property
    def round(self) -> float:
        return statistics.median(self.seconds)


def environment(name: str, place: Path) -> Path:
    """The Python of a peer's environment, which is made where it is missing."""
    wanted, folder = ENVIRONMENTS[name], place / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"making {folder} …", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [pin for pin in pins if pin.partition("==")[0] not in wanted.free]
    (folder / "constraints.txt").write_text("\n".join(kept) + "\n", encoding="utf-8")
    call = [python, "-m", "pip", "install", "--quiet", "-c", folder / "constraints.txt", "-e", ROOT]
    done = subprocess.run([*call, *wanted.requirements], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Missing(f"cannot be installed: {last_line(done.stderr)}")
    (folder / "ready").touch()
    return python


def python_of(peer: Peer, place: Path, here: bool) -> Path:
    module = ENVIRONMENTS[peer.environment].module if peer.environment else peer.needs
    if peer.environment and not here:
        return environment(peer.environment, place)
    needed = (module, "ray") if module == "flwr" else (module,)
    for each in needed:
        if importlib.util.find_spec(each) is None:
            raise Missing(f"{each} is not installed")
    return Path(sys.executable)


def last_line(text: str) -> str:
    """The first error that was told, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "no reason")


def measure(peer: Peer, python: Path, folder: Path, rounds: int) -> Measured:
    """One measurement in a process of its own."""
    answer, log = folder / f"{peer.name}.json", folder / f"{peer.name}.log"
    answer.unlink(missing_ok=True)
    call = [str(python)]
    if peer.processes > 1:
        call += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(peer.processes)]
    call += [str(ROOT / "benchmarks" / "peers_run.py"), peer.name, str(folder), str(rounds + 1), str(answer)]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "benchmarks")))
    given = {"PYTHONPATH": path, "OMP_NUM_THREADS": "2" if peer.name == "plain-2" else "1"}
    began, peak = time.monotonic(), 0
    with log.open("w", encoding="utf-8") as told:
        process = subprocess.Popen(
            call, env={**os.environ, **given}, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                peak = max(peak, memory(process.pid))
                if time.monotonic() - began > LONGEST:
                    raise Missing(f"not finished after {LONGEST} s")
                time.sleep(LOOK_EVERY)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode or not answer.exists():
        raise Missing(f"failed: {last_line(log.read_text(encoding='utf-8', errors='replace'))}")
    return read(json.loads(answer.read_text(encoding="utf-8")), began, peak, folder, rounds)


def read(found: dict, began: float, peak: int, folder: Path, rounds: int) -> Measured:
    """What a measurement's answer says; it must have taken the steps that were asked for."""
    size = Work.load(folder).size
    steps = (rounds + 1) * size.per_round * size.steps
    if found["steps"] != steps or len(found["rounds"]) != rounds + 1:
        raise Missing(f"did other work: {found['steps']} steps instead of {steps}")
    pairs = list(zip(found["rounds"], found["rounds"][1:], strict=False))
    seconds = [after["ended"] - before["next"] for before, after in pairs]
    processor = [after["processor"] - before["processor"] for before, after in pairs]
    start = found["rounds"][0]["ended"] - began - statistics.median(seconds)
    return Measured(seconds, processor, start, peak, found["accuracy"], found["version"])


def prepare(sizes: dict[str, Size], place: Path, root: Path | None) -> dict[str, Path]:
    """The images of each size, in a folder."""
    folders = {}
    for name, size in sizes.items():
        if root is None:
            parts = (*drawn(size.images, SIDE, 1), *drawn(TEST_IMAGES, SIDE, 2))
        else:
            data = sources.load("cifar10", root, image_size=SIDE)
            train, test = data.train, data.test
            parts = (train.images[: size.images], train.labels[: size.images],
                     test.images[:TEST_IMAGES], test.labels[:TEST_IMAGES])  # fmt: skip
        folders[name] = place / name.replace(" ", "-")
        Work(size, *(part.contiguous() for part in parts), dealt(size)).save(folders[name])
    return folders


def take_turns(
    peers: list[Peer], folders: dict[str, Path], options: argparse.Namespace
) -> tuple[dict[tuple[str, str], list[Measured]], dict[str, str]]:
    """All measurements by size and name, and why some peers have none."""
    pythons, missing = {}, {}
    for peer in peers:
        try:
            pythons[peer.name] = python_of(peer, options.place, options.here)
        except Missing as reason:
            missing[peer.name] = str(reason)
    found: dict[tuple[str, str], list[Measured]] = {}
    for turn in range(options.repeats):
        for size, folder in folders.items():
            for peer in peers:
                if peer.name in missing:
                    continue
                try:
                    one = measure(peer, pythons[peer.name], folder, options.rounds)
                except Missing as reason:
                    missing[peer.name] = str(reason)
                    print(f"{peer.title}: {reason}", flush=True)
                    continue
                found.setdefault((size, peer.name), []).append(one)
                print(f"turn {turn + 1}, {size}, {peer.title}: {one.round:.3f} s a round", flush=True)
    return found, missing


def row(size: str, peer: Peer, mine: list[Measured], tuned: list[Measured], per_round: int) -> list[str]:
    seconds = statistics.median(one.round for one in mine)
    ratios = [one.round / other.round for one, other in zip(mine, tuned, strict=False)]
    return [
        size,
        f"{peer.title} ({mine[0].version})" if peer.environment else peer.title,
        f"{seconds:.3f}",
        f"{statistics.median(ratios):.2f}" if ratios else "",
        f"{per_round / seconds:.1f}",
        f"{statistics.median(statistics.median(one.processor) for one in mine):.2f}",
        f"{statistics.median(one.start for one in mine):.1f}",
        f"{statistics.median(one.memory for one in mine) / (1 << 20):.0f}",
        f"{statistics.median(one.accuracy for one in mine):.1f}",
        "",
    ]


def table(
    peers: list[Peer],
    sizes: dict[str, Size],
    found: dict[tuple[str, str], list[Measured]],
    missing: dict[str, str],
) -> list[list[str]]:
    """A row for each size and peer; who has no figures says why."""
    rows = []
    for name, size in sizes.items():
        for peer in peers:
            mine = found.get((name, peer.name), [])
            if mine:
                rows.append(row(name, peer, mine, found.get((name, TUNED), []), size.per_round))
            else:
                blank = [""] * (len(COLUMNS) - 3)
                rows.append([name, peer.title, *blank, missing.get(peer.name, "not measured")])
    return rows


def show(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for line in (list(COLUMNS), *rows):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def draw(results: Path, path: Path) -> None:
    """A panel per size with a bar for everyone who has figures: the ratio of seconds to the tuned loop."""
    with results.open(newline="", encoding="utf-8") as file:
        rows = [line for line in csv.DictReader(file) if line["ratio to the tuned loop"]]
    sizes = list(dict.fromkeys(line["size"] for line in rows))
    if not sizes:
        print(f"note: no picture: there are no ratios without {TUNED}")
        return
    figure = plot_style.new_figure(10, 4.6)
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(panels, sizes, strict=True):
        mine = [line for line in reversed(rows) if line["size"] == size]
        names = [line["who"] for line in mine]
        ratios = [float(line["ratio to the tuned loop"]) for line in mine]
        ours = [plot_style.VERMILLION if name.startswith("proxyfl") else plot_style.SKY for name in names]
        bars = axes.barh(names, ratios, color=ours, height=0.7)
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.bar_label(bars, fmt="%.2f", padding=4, fontsize=plot_style.SMALL, bbox=ground)
        axes.axvline(1, color=plot_style.MUTED, linewidth=1, linestyle=plot_style.DASHED, zorder=0)
        axes.set_xlim(0, 1.15 * max(ratios))
        plot_style.dress(axes, title=size, x="time of a round (tuned loop = 1)", grid="x")
    plot_style.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "peers", help="for the environments")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a measurement that count")
    parser.add_argument("--data-root", type=Path, help="where CIFAR-10 is; without it, images are drawn")
    parser.add_argument("--only", help="names, separated by commas: " + ", ".join(p.name for p in PEERS))
    parser.add_argument("--sizes", help="'real work' or 'framework only' alone")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, for a smoke test")
    parser.add_argument("--here", action="store_true", help="make no environment; measure what is installed")
    parser.add_argument("--draw", action="store_true", help="only draw the picture from the results")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "peers.csv")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "peers.png")
    options = parser.parse_args()
    options.place = options.place.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a measurement ends with this process
    if options.rounds < 1 or options.repeats < 1:
        parser.error("--rounds and --repeats must be at least 1")
    if options.draw:
        draw(options.results, options.picture)
        return
    peers, sizes = chosen(parser, options)
    folders = prepare(sizes, options.place, options.data_root)
    rows = table(peers, sizes, *take_turns(peers, folders, options))
    show(rows)
    plot_style.save_csv(options.results, COLUMNS, rows)
    draw(options.results, options.picture)


def chosen(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[list[Peer], dict[str, Size]]:
    names = options.only.split(",") if options.only else [peer.name for peer in PEERS]
    if strange := sorted(set(names) - {peer.name for peer in PEERS}):
        parser.error(f"no peer is called {', '.join(strange)}; see --help for the names")
    sizes = QUICK if options.quick else SIZES
    if options.sizes and options.sizes not in sizes:
        parser.error(f"--sizes {options.sizes} is none of {', '.join(sizes)}")
    kept = {name: size for name, size in sizes.items() if options.sizes in (None, name)}
    return [peer for peer in PEERS if peer.name in names], kept


if __name__ == "__main__":
    main()
