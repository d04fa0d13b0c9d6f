"""A small real run, and ways to change it as a stranger would: content is evil, checksums are right."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.experiment import Experiment
from toybox import LITTLE

EVIL = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>[/red][link=file:///etc]\u202e\r\n"
"""Moves the cursor, renames the window, is HTML and markup, and turns the direction of text."""

Tamper = Callable[[RunDirectory], None]


def make_run(folder: Path) -> Path:
    settings = {**LITTLE, "rounds": 2, "per_round": 2, "subset": 60}
    Experiment("flexmatch", "digits", **settings).run(folder, workers=0)
    return folder


def copy_of(run: Path, place: Path) -> RunDirectory:
    shutil.copytree(run, place, symlinks=True)
    return RunDirectory(place)


def newest(run: RunDirectory) -> Path:
    return max(path for path in run.checkpoints.iterdir() if path.name.startswith("round-"))


def seal(run: RunDirectory) -> None:
    """Make every checksum right again, so that nothing but the content can be refused."""
    for folder in run.checkpoints.glob("round-*"):
        file = folder / "manifest.json"
        manifest = json.loads(file.read_bytes())["manifest"]
        manifest["files"] = {
            path.name: sha256(path) for path in folder.iterdir() if path.name != "manifest.json"
        }
        if isinstance(manifest.get("metrics"), dict):
            manifest["metrics"] = {"size": run.metrics.stat().st_size, "sha256": sha256(run.metrics)}
        for own in (run.partition, run.environment):
            if isinstance(manifest.get("run"), dict) and own.is_file():
                manifest["run"][own.name] = sha256(own)
        write_manifest(folder, manifest)
    run.metrics_copy.write_bytes(run.metrics.read_bytes())


def write_manifest(folder: Path, manifest: Any) -> None:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({"sha256": digest, "manifest": manifest}))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metrics(**changes: Any) -> Tamper:
    """The last line of the metrics with other values."""

    def tamper(run: RunDirectory) -> None:
        lines = run.metrics.read_text().splitlines()
        last = {**json.loads(lines[-1]), **changes}
        last = {name: value for name, value in last.items() if value is not ...}
        run.metrics.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
        seal(run)

    return tamper


def raw_metrics(text: str) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        run.metrics.write_text(text)
        seal(run)

    return tamper


def timing(text: str) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        run.timing.write_text(text)
        run.events.write_text(text)

    return tamper


def environment(text: str) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        run.environment.write_text(text)
        seal(run)

    return tamper


def stopped(tamper: Tamper) -> Tamper:
    """The same in a run that has a round left, which is read by whoever goes on with it."""

    def both(run: RunDirectory) -> None:
        shutil.rmtree(newest(run))
        run.metrics.write_text(run.metrics.read_text().splitlines(keepends=True)[0])
        seal(run)
        tamper(run)

    return both


def without_clients(run: RunDirectory) -> None:
    """A line of metrics that names no clients, where the server keeps something for them."""
    run.server.mkdir()
    metrics(clients=...)(run)


def huge(place: str) -> Tamper:
    """A file of terabytes, none of which are on the disk."""
    return lambda run: os.truncate(run.path / place, 1 << 42)


def pipe(place: str) -> Tamper:
    """A pipe that nobody writes to: who opens it waits for ever."""

    def tamper(run: RunDirectory) -> None:
        (run.path / place).unlink(missing_ok=True)
        os.mkfifo(run.path / place)

    return tamper


def settings(old: str, new: str) -> Tamper:
    """The config with another line, in every place that has it."""

    def tamper(run: RunDirectory) -> None:
        text = run.config.read_text()
        assert old in text
        for place in (run.config, *run.checkpoints.glob("round-*/config.toml")):
            place.write_text(text.replace(old, new))
        seal(run)

    return tamper


def card(**changes: Any) -> Tamper:
    """The models with another card."""

    def tamper(run: RunDirectory) -> None:
        for path in (run.models / "last.safetensors", run.models / "best.safetensors", run.best_copy):
            tensors, metadata = read_verified(path)
            fields = {**json.loads(metadata["proxyfl"]), **changes}
            write_verified(path, tensors, {"proxyfl": json.dumps(fields)})

    return tamper


def state(**changes: Any) -> Tamper:
    """The newest state with other tensors; None takes one away."""

    def tamper(run: RunDirectory) -> None:
        for folder in run.checkpoints.glob("round-*"):
            path = folder / "state.safetensors"
            tensors = {**load(path.read_bytes()), **changes}
            path.write_bytes(save({name: value for name, value in tensors.items() if value is not None}))
        seal(run)

    return tamper


def partition(**changes: Any) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        tensors = {**load(run.partition.read_bytes()), **changes}
        run.partition.write_bytes(save({name: value for name, value in tensors.items() if value is not None}))
        seal(run)

    return tamper


def manifest(**changes: Any) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        for folder in run.checkpoints.glob("round-*"):
            found = json.loads((folder / "manifest.json").read_bytes())["manifest"]
            write_manifest(folder, {**found, **changes})

    return tamper


def snapshot(**changes: Any) -> Tamper:
    def tamper(run: RunDirectory) -> None:
        for path in run.snapshots.iterdir():
            tensors, metadata = read_verified(path)
            tensors = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
            write_verified(path, tensors, {name: text for name, text in metadata.items() if name != "sha256"})

    return tamper


PLACES = (
    *("config.toml", "environment.json", "partition.safetensors"),
    *("metrics.jsonl", "clients.jsonl", "timing.jsonl", "events.jsonl"),
    *("models/last.safetensors", "models/best.safetensors"),
    *("checkpoints/metrics.copy.jsonl", "checkpoints/best.safetensors"),
    *("checkpoints/round-00000002/manifest.json", "checkpoints/round-00000002/state.safetensors"),
    *("checkpoints/round-00000002/config.toml", "snapshots/round-00000001.safetensors"),
)
NESTED = "[" * 100_000
LINE = '{"round": 1, "accuracy": 0.5, "traffic": {"bytes_up": 1, "bytes_down": 1}}\n'

TAMPERS: dict[str, Tamper] = {
    "accuracy text": metrics(accuracy="0.5"),
    "accuracy none": metrics(accuracy=None),
    "accuracy gone": metrics(accuracy=...),
    "accuracy huge": metrics(accuracy=10**400),
    "accuracy infinite": raw_metrics(LINE.replace("0.5", "Infinity") * 2),
    "accuracy not a number": raw_metrics(LINE.replace("0.5", "NaN") * 2),
    "round text": metrics(round=EVIL),
    "round huge": metrics(round=10**400),
    "failed evil": metrics(failed={EVIL: EVIL}),
    "failed list": metrics(failed=[1, 2]),
    "failed numbers": metrics(failed={"1": 5}),
    "losses evil": metrics(losses={EVIL: 1.0}),
    "losses text": metrics(losses={"a": EVIL}),
    "losses list": metrics(losses=[1]),
    "pseudo evil": metrics(pseudo={"selected_share": EVIL, EVIL: 1}),
    "traffic gone": metrics(traffic=...),
    "traffic evil": metrics(traffic={"bytes_up": EVIL, "bytes_down": 1, "down": {EVIL: 1}, "up": {}}),
    "traffic list": metrics(traffic=[]),
    "clients number": metrics(clients=5),
    "clients evil": metrics(clients=[EVIL]),
    "idle none": metrics(idle=None),
    "per class text": metrics(per_class=EVIL),
    "per class huge": metrics(per_class=[10**400]),
    "prior evil": metrics(prior=[EVIL, None]),
    "privacy text": metrics(privacy={"epsilon": "x", "delta": 1e-5}),
    "privacy list": metrics(privacy=[1]),
    "privacy half": metrics(privacy={"epsilon": 1.0}),
    "privacy evil": metrics(privacy={"epsilon": 1.0, "delta": 1e-5, EVIL: 1}),
    "counts evil": metrics(counts={EVIL: EVIL}, rejected=EVIL, client_weights=EVIL, class_counts={EVIL: 1}),
    "clients gone": stopped(without_clients),
    "nested metrics": raw_metrics(f"{NESTED}\n{LINE}{LINE}"),
    "nested inside": raw_metrics('{"round": 1, "accuracy": ' + "[" * 900 + "]" * 900 + "}\n"),
    "many digits": raw_metrics('{"round": 1, "accuracy": ' + "9" * 5000 + "}\n"),
    "no metrics": raw_metrics(""),
    "bare values": raw_metrics('1\n"a"\n[]\nnull\n'),
    "timing evil": timing(json.dumps({"round": 1, "train": EVIL, EVIL: 1, "event": EVIL}) + "\n"),
    "timing huge": timing(json.dumps({"round": 1, "train": 10**400}) + "\n"),
    "timing nested": timing(f"{NESTED}\n"),
    "events evil": timing(
        json.dumps({"event": "client failed", "round": 1, "client": EVIL, "reason": EVIL}) + "\n"
    ),
    "environment nested": environment(NESTED),
    "environment nested, stopped": stopped(environment(NESTED)),
    "environment list": environment("[]"),
    "root number": environment('{"data_root": 5}'),
    "root list": environment('{"data_root": ["a"], "data": 7}'),
    "root zero": environment('{"data_root": "\\u0000"}'),
    "root evil": environment(json.dumps({"data_root": EVIL, "data": EVIL})),
    "rounds beyond": settings("rounds = 2", "rounds = 99999999999"),
    "other data": settings('name = "digits"', 'name = "folder:/nowhere"'),
    "evil data": settings('name = "digits"', f"name = {json.dumps('folder:' + EVIL)}"),
    "other method": settings('name = "flexmatch"', f"name = {json.dumps(EVIL)}"),
    "another method": settings('name = "flexmatch"', 'name = "fedavg"'),
    "wider": settings("width = 1", "width = 2"),
    "more clients": settings("clients = 4", "clients = 400"),
    "card classes": card(classes=[EVIL] * 10),
    "card fewer classes": card(classes=["a"]),
    "card many classes": card(classes=["a"] * 100_000),
    "card classes number": card(classes=5),
    "card class numbers": card(classes=list(range(10))),
    "card size": card(image_size=10**9),
    "card size text": card(image_size="8"),
    "card width": card(width=10**6),
    "card width negative": card(width=-1),
    "card width true": card(width=True),
    "card channels": card(channels=10**9),
    "card mean": card(mean=[]),
    "card mean text": card(mean=["a"]),
    "card mean infinite": card(mean=[float("inf")]),
    "card network": card(network=EVIL),
    "card network list": card(network=["resnet8"]),
    "card method": card(method=EVIL, round=10**400),
    "card accuracy": card(accuracy=EVIL),
    "card heads": card(heads=True),
    "card more": card(more=1),
    "state round": state(round=torch.tensor(10**18)),
    "state round negative": state(round=torch.tensor(-1)),
    "state round many": state(round=torch.tensor([1, 2])),
    "state round none": state(round=None),
    "state weights": state(**{"weights/classifier.weight": torch.zeros(3)}),
    "state weights gone": state(**{"weights/classifier.weight": None}),
    "state weights kind": state(**{"weights/classifier.bias": torch.zeros(10, dtype=torch.int8)}),
    "state weights nan": state(**{"weights/classifier.bias": torch.full((10,), float("nan"))}),
    "state path": state(**{"extras/../../../x": torch.zeros(1), "weights/../../x": torch.zeros(1)}),
    "state versions": state(**{"versions/clients": torch.zeros(2, 2), "versions/rounds": torch.zeros(1)}),
    "state versions far": state(
        **{"versions/clients": torch.tensor([0, 10**15]), "versions/rounds": torch.tensor([9, 9])}
    ),
    "partition out of range": partition(**{"labelled.values": torch.full((500,), 10**9)}),
    "partition kind": partition(**{"labelled.values": torch.zeros(500)}),
    "partition gone": partition(**{"labelled.values": None}),
    "partition stops": partition(**{"labelled.stops": torch.full((4,), 10**12)}),
    "manifest run": manifest(run={}),
    "manifest run list": manifest(run=[]),
    "manifest run evil": manifest(run={"data": EVIL, "partition.safetensors": 5}),
    "manifest metrics": manifest(metrics={"size": -5, "sha256": EVIL}),
    "manifest metrics text": manifest(metrics={"size": "x", "sha256": 5}),
    "manifest format": manifest(format=EVIL),
    "manifest files": manifest(files=[]),
    "snapshot shapes": snapshot(**{"proxies/clients": torch.zeros(2), "confusion": torch.zeros(3, 4)}),
    "snapshot empty": snapshot(**{"proxies/clients": torch.zeros(0, 0, 0), "confusion": torch.zeros(0, 0)}),
    "snapshot nan": snapshot(confusion=torch.full((10, 10), float("nan"))),
    **{f"huge {place}": huge(place) for place in PLACES},
    **{f"huge {place}, stopped": stopped(huge(place)) for place in PLACES if "00002" not in place},
    **{f"pipe {place}": pipe(place) for place in (*PLACES, ".lock")},
}
