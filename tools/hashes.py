"""A net under refactoring: hashes of what small runs of every method end in.

python tools/hashes.py record FILE.json     train all of them and write their hashes
python tools/hashes.py check FILE.json      train them again and say which differ; exit with 1 where any does

Hashes depend on the machine and on torch: record and check on the same one. ``tools/hashes.json`` is the
table that the object layer was judged by; its cases were equal before and after. Each case is two rounds,
trained in this process, by two worker processes, and stopped after round 1 and resumed; all must agree.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from proxyfl import Experiment, resume
from proxyfl.core.checksum import read_verified
from proxyfl.core.dealing import SCENARIOS
from proxyfl.core.state import content_hash
from proxyfl.methods import registry
from proxyfl.runs.settings import identity

TINY: dict[str, Any] = {
    "rounds": 2, "clients": 4, "per_round": 2, "width": 1, "dtype": "fp32",
    "train__epochs": 1, "train__batch": 8,
}  # fmt: skip
ROBUST = {"per_round": 4, "clients": 6}
COMPOSITIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedlabel+proxyfl": ("fedlabel+proxyfl", {}),
    "sage+gpt": ("sage+gpt", {}),
    "proxyfl, fidelity code": ("proxyfl", {"fidelity": "code"}),
    "proxyfl, fidelity paper": ("proxyfl", {"fidelity": "paper"}),
    "sage, fidelity code": ("sage", {"fidelity": "code"}),
    "proxyfl, median": ("proxyfl", {**ROBUST, "aggregation__rule": "median"}),
    "fixmatch-gpl, trimmed": ("fixmatch-gpl", {**ROBUST, "aggregation__rule": "trimmed",
                                               "aggregation__hostile": 0.3}),
    "fedavg, krum": ("fedavg", {"per_round": 5, "clients": 6, "aggregation__rule": "krum"}),
    "proxyfl, clip": ("proxyfl", {**ROBUST, "aggregation__clip": 0.5}),
    "fedavg, privacy": ("fedavg", {**ROBUST, "privacy__clip": 0.5, "federation__sampling": "poisson",
                                   "federation__weighting": "uniform"}),
}  # fmt: skip


class StopAfterOne:
    """Ends a run after its first round."""

    class Stopped(Exception):
        pass

    def round_started(self, round: int, clients: list[int]) -> None: ...

    def answered(self, answer: object) -> None: ...

    def round_finished(self, report: Any) -> None:
        raise self.Stopped


def cases(drawn: Path) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """(name, method, settings) of each."""
    sources = {"digits": {"subset": 160}, "drawn": {"data__name": f"npz:{drawn}", "labels__rule": "release"}}
    for source, data in sources.items():
        for name in (recipe.name for recipe in registry.recipes()):
            yield f"{name} on {source}", name, {**TINY, **data, **scenario(name)}
    for name, (method, settings) in COMPOSITIONS.items():
        yield name, method, {**TINY, **sources["digits"], **settings}


def scenario(method: str) -> dict[str, str]:
    """Who has labels: every client, where the method is defined so; else the first scenario that it is for."""
    where = next(where for where in SCENARIOS if registry.defined(registry.create(method), where))
    return {} if where == SCENARIOS[0] else {"labels__where": where}


def draw(path: Path) -> Path:
    """Images in colour, one bright stripe a class."""
    random = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 160), ("test", 40)):
        labels = random.permutation(count) % 4
        images = random.integers(0, 120, (count, 8, 8, 3), dtype=np.uint8)
        images[np.arange(count), labels * 2] += 100
        arrays |= {f"{split}_images": images, f"{split}_labels": labels.astype(np.int64)}
    np.savez(path, **arrays)
    return path


def ended(run: Path) -> dict[str, str]:
    weights = read_verified(run / "models" / "last.safetensors")[0]
    return {
        "weights": content_hash(weights),
        "metrics": hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest(),
    }


def trained(case: tuple[str, str, dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """The hashes of a case, the same whichever way it is trained."""
    name, method, settings = case
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(method, "digits", **settings)
        ways = {
            "inline": Path(folder, "inline"),
            "workers": Path(folder, "workers"),
            "resume": Path(folder, "resume"),
        }
        experiment.run(ways["inline"], workers=0)
        experiment.run(ways["workers"], workers=2)
        try:
            experiment.run(ways["resume"], [StopAfterOne()], workers=0)
        except StopAfterOne.Stopped:
            resume(ways["resume"], workers=0)
        found = {way: ended(path) for way, path in ways.items()}
    if len({json.dumps(each) for each in found.values()}) > 1:
        return name, {"differ": ", ".join(f"{way} {each['weights'][:8]}" for way, each in found.items())}
    named = {} if "data__name" in settings else {"identity": identity(experiment.config)}
    return name, {**found["inline"], **named}


def record(file: Path | None, only: str, processes: int) -> dict[str, dict[str, str]]:
    """Train all cases; ``file`` takes each as soon as it is there, and what it holds is not trained again."""
    found: dict[str, dict[str, str]] = {}
    if file is not None and file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        wanted = [case for case in cases(draw(Path(folder, "drawn.npz"))) if only in case[0]]
        wanted = [case for case in wanted if case[0] not in found]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            for count, (name, hashes) in enumerate(pool.map(trained, wanted), 1):
                found[name] = hashes
                print(f"{count}/{len(wanted)}  {name}", file=sys.stderr)
                if file is not None:
                    file.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    recording = given.verb == "record"
    found = record(given.file if recording else None, given.only, given.processes)
    wrong = [f"{name}: {each['differ']}" for name, each in found.items() if "differ" in each]
    if not recording:
        known = json.loads(given.file.read_text(encoding="utf-8"))
        known = {name: hashes for name, hashes in known.items() if given.only in name}
        wrong += [
            f"{name}: was {hashes}, is {found.get(name)}"
            for name, hashes in known.items()
            if hashes != found.get(name)
        ]
        wrong += [f"{name}: not on record" for name in found if name not in known]
    print("\n".join(wrong) or f"{len(found)} cases{'' if recording else ', all equal'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
