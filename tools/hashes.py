"""A net under refactoring: hashes of what small runs of every method end in.

python tools/hashes.py record FILE.json     train those that the file lacks and write their hashes
python tools/hashes.py check FILE.json      train them again and say which differ; exit with 1 where any does

Each case is two rounds, trained in this process, by two worker processes, and stopped after round 1 and
resumed; all must agree (``--inline``: in this process only, which is quick). Weights depend on the machine
and on torch, so the file says what torch alone computes where it was recorded. Where it computes otherwise,
``check`` compares identities and trains nothing: record a file on the commit before, on this machine, and
check against that.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from proxyfl import Experiment, resume
from proxyfl.core.checksum import read_verified
from proxyfl.core.dealing import SCENARIOS
from proxyfl.core.state import content_hash
from proxyfl.federation.loop import Observer
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

Case = tuple[str, str, dict[str, Any]]
"""(name, method, settings)"""
Table = dict[str, dict[str, str]]


class StopAfterOne(Observer):
    """Ends a run after its first round."""

    class Stopped(Exception):
        pass

    def round_finished(self, report: Any) -> None:
        raise self.Stopped


def cases(drawn: Path) -> Iterable[Case]:
    """(name, method, settings) of each."""
    sources = {"digits": {"subset": 160}, "drawn": {"data__name": f"npz:{drawn}", "labels__rule": "release"}}
    for source, data in sources.items():
        for name in (recipe.name for recipe in registry.recipes()):
            yield f"{name} on {source}", name, {**TINY, **data, **scenario(name)}
    for name, (method, settings) in COMPOSITIONS.items():
        yield name, method, {**TINY, **sources["digits"], **settings}


def scenario(method: str) -> dict[str, str]:
    """Who has labels: every client, where the method is defined so, else as it is defined."""
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


def trained(case: Case, inline: bool = False) -> tuple[str, dict[str, str]]:
    """The hashes of a case, the same whichever way it is trained."""
    name, method, settings = case
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(method, "digits", **settings)
        ways = {way: Path(folder, way) for way in ("inline", *(() if inline else ("workers", "resume")))}
        experiment.run(ways["inline"], workers=0)
        if not inline:
            experiment.run(ways["workers"], workers=2)
            try:
                experiment.run(ways["resume"], [StopAfterOne()], workers=0)
            except StopAfterOne.Stopped:
                resume(ways["resume"], workers=0)
        found = {way: ended(path) for way, path in ways.items()}
    if len({json.dumps(each) for each in found.values()}) > 1:
        return name, {"differ": ", ".join(f"{way} {each['weights'][:8]}" for way, each in found.items())}
    return name, {**found["inline"], **named(case)}


def named(case: Case) -> dict[str, str]:
    """The identity of a case whose data has the same name everywhere."""
    _, method, settings = case
    if "data__name" in settings:
        return {}
    return {"identity": identity(Experiment(method, "digits", **settings).config)}


def arithmetic() -> str:
    """A hash of what torch alone computes here: convolution, product and their gradients."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images, kernels, matrix = (
        torch.rand(shape, generator=generator, requires_grad=True)
        for shape in ((32, 3, 8, 8), (16, 3, 3, 3), (1024, 10))
    )
    scores = F.conv2d(images, kernels, padding=1).relu().flatten(1) @ matrix
    scores.log_softmax(1).square().mean().backward()
    return content_hash({"scores": scores, "kernels": kernels.grad, "matrix": matrix.grad})


def record(wanted: list[Case], known: Table, file: Path | None, processes: int, inline: bool) -> Table:
    """Train the cases that are not known; ``file`` takes each as soon as it is there."""
    found, missing = dict(known), [case for case in wanted if case[0] not in known]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
        for count, (name, hashes) in enumerate(pool.map(partial(trained, inline=inline), missing), 1):
            found[name] = hashes
            print(f"{count}/{len(missing)}  {name}", file=sys.stderr)
            if file is not None:
                table = {"arithmetic": arithmetic(), "cases": found}
                file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


def differences(known: Table, found: Table) -> list[str]:
    """Which cases are not as they were, or not on record."""
    changed = [
        f"{name}: was {hashes}, is {found.get(name)}"
        for name, hashes in known.items()
        if hashes != found.get(name)
    ]
    return changed + [f"{name}: not on record" for name in found if name not in known]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--inline", action="store_true", help="neither by worker processes nor resumed")
    given = parser.parse_args()
    recording, file = given.verb == "record", given.file
    table = json.loads(file.read_text(encoding="utf-8")) if file.exists() or not recording else {}
    known: Table = table.get("cases", {})
    elsewhere = table.get("arithmetic", arithmetic()) != arithmetic()
    if recording and elsewhere:
        parser.error(f"{file} was recorded where torch computes otherwise; record another file here")
    with tempfile.TemporaryDirectory() as folder:
        wanted = [case for case in cases(draw(Path(folder, "drawn.npz"))) if given.only in case[0]]
        if elsewhere:
            print("recorded where torch computes otherwise: only identities are compared", file=sys.stderr)
            found = {case[0]: named(case) for case in wanted}
            known = {name: {k: v for k, v in each.items() if k == "identity"} for name, each in known.items()}
        elif recording:
            found = record(wanted, known, file, given.processes, given.inline)
        else:
            found = record(wanted, {}, None, given.processes, given.inline)
    wrong = [f"{name}: {each['differ']}" for name, each in found.items() if "differ" in each]
    if not recording:
        wrong += differences({name: each for name, each in known.items() if given.only in name}, found)
    print("\n".join(wrong) or f"{len(found)} cases{'' if recording else ', all equal'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
