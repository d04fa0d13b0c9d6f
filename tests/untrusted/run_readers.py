"""Readers of the files of a run: one file is the stranger's, the others are sound, and all checksums fit."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from proxyfl.core import checksum
from proxyfl.core.checksum import write_tensors
from proxyfl.core.errors import RunError
from proxyfl.core.files import sha256, write_bytes
from proxyfl.core.state import ServerState, Versions
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged
from proxyfl.federation.client_store import ClientStore
from proxyfl.runs import checkpoint
from proxyfl.runs.config_file import to_toml
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.metrics_log import Mark
from proxyfl.runs.run import Run
from proxyfl.runs.settings import resolve

ROUND = "checkpoints/round-00000001"
MANIFEST = f"{ROUND}/manifest.json"
CLIENT, SERVER = (f"{store}/000000/000000002/round-00000001.safetensors" for store in ("clients", "server"))
LINE: dict[str, Any] = {
    "round": 1,
    "accuracy": 0.5,
    "per_class": [0.5, None],
    "clients": [0, 2],
    "idle": [1],
    "failed": {"3": "no battery"},
    "losses": {"supervised": 2.0},
    "pseudo": {"selected_share": 0.25},
    "privacy": {"epsilon": 1.5, "delta": 1e-5, "order": 8.0},
    "prior": [0.5, 0.5],
    "traffic": {"bytes_up": 5, "bytes_down": 7, "up": {"weights": 5}, "down": {"weights": 7}},
}
ROW: dict[str, Any] = {
    "round": 1,
    "client": 2,
    "images": 8,
    "labelled": 0.5,
    "norm": 1.5,
    "cosine": -0.25,
    "trusted": 0.125,
    "losses": {"supervised": 2.0},
    "held": 4,
    "accuracy": 0.75,
}


@cache
def sound_run() -> dict[str, bytes]:
    """The files of a run after one round of one that keeps states, without the training."""
    with TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        run.checkpoints.mkdir()
        line = json.dumps(LINE).encode() + b"\n"
        write_bytes(run.config, to_toml(resolve("digits"), "a comment").encode())
        write_bytes(run.environment, json.dumps({"data_root": "/data", "data": "5", "cores": 2}).encode())
        held = Ragged.from_sizes(np.arange(4, dtype=np.int64), np.array([1, 1, 2]))
        write_tensors(run.partition, Partition(held, held).to_tensors())
        row = json.dumps(ROW).encode() + b"\n"
        for file in (run.metrics, run.metrics_copy):
            write_bytes(file, line)
        for file in (run.client_log, run.client_log_copy):
            write_bytes(file, row)
        for store in (run.clients, run.server):
            ClientStore(store).save(2, 1, {"a": torch.arange(3.0)})
        versions = Versions(torch.tensor([2]), torch.tensor([1]))
        state = ServerState(1, {"w": torch.ones(3), "b": torch.zeros(())}, {"x": torch.ones(2)}, versions)
        hashes = {file.name: sha256(file) for file in (run.partition, run.environment)}
        checkpoint.save(run, state, Mark.of(line), 2, {**hashes, "data": "5"}, clients=Mark.of(row))
        # as the oldest checkpoint: what clients wrote after it must be intact
        (run.checkpoints / "round-00000000").mkdir()
        write_bytes(run.checkpoints / "round-00000000" / "manifest.json", b"{}")
        return {
            str(file.relative_to(run.path)): file.read_bytes()
            for file in run.path.rglob("*")
            if file.is_file()
        }


def sealed_run(folder: Path, place: str, content: bytes) -> RunDirectory:
    """A run with this content at a place, and every checksum about it right."""
    files = {**sound_run(), place: content}
    if place in ("metrics.jsonl", "clients.jsonl"):
        files[f"checkpoints/{Path(place).stem}.copy.jsonl"] = content
    if place != MANIFEST:
        files[MANIFEST] = _manifest_about(files, place)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return RunDirectory(folder)


def _manifest_about(files: dict[str, bytes], place: str) -> bytes:
    manifest = json.loads(files[MANIFEST])["manifest"]
    digest = hashlib.sha256(files[place]).hexdigest()
    if place.startswith(ROUND):
        manifest["files"][Path(place).name] = digest
    elif place in ("metrics.jsonl", "clients.jsonl"):
        manifest[Path(place).stem] = {"size": len(files[place]), "sha256": digest}
    elif place in manifest["run"]:
        manifest["run"][place] = digest
    return _closed(manifest)


def _closed(manifest: Any) -> bytes:
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({"sha256": digest, "manifest": manifest}).encode()


def read_manifest(content: bytes, folder: Path) -> Any:
    """The content is what the manifest says; its own hash is put round it where it is JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        content = _closed(json.loads(content))
    return _all_of(sealed_run(folder, MANIFEST, content))


def read_in_run(place: str) -> Callable[[bytes, Path], Any]:
    return lambda content, folder: _all_of(sealed_run(folder, place, content))


def _all_of(run: RunDirectory) -> Any:
    """What show, report and resume read: each of it, so that one refusal hides nothing."""
    found: list[Any] = []
    for part in (
        lambda: Run(run.path).metrics,
        lambda: Run(run.path).client_rows,
        lambda: Run(run.path).partition,
        lambda: Run(run.path).environment,
        lambda: checkpoint.load_newest(run, states=True)[0],
    ):
        try:
            found.append(part())
        except RunError as error:
            refusal = error
    if len(found) < 5:
        raise refusal
    return found


def read_states(place: str) -> Callable[[bytes, Path], Any]:
    """A file that carries its own hash, which is made right where there is a place for it."""

    def read(content: bytes, folder: Path) -> Any:
        if len(content) > checksum._STOP and content[checksum._LENGTH : checksum._START] == checksum._MARK:
            content = content[: checksum._START] + checksum._digest(content) + content[checksum._STOP :]
        return _all_of(sealed_run(folder, place, content))

    return read


def show(place: str, *options: str) -> Callable[[bytes, Path], Any]:
    """Metrics, or what was noted of clients, through ``proxyfl show``, and as they are read elsewhere."""
    from typer.testing import CliRunner

    from proxyfl.cli import app

    def read(content: bytes, folder: Path) -> Any:
        run = sealed_run(folder, place, content)
        result = CliRunner().invoke(app, ["show", str(run.path), *options])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.output.replace("\n", "").isprintable()
        return _all_of(run) if result.exit_code == 0 else None

    return read


def _sample(place: str) -> Callable[[], bytes]:
    return lambda: sound_run()[place]


RUN_READERS: dict[str, tuple[Callable[[], bytes], Callable[[bytes, Path], Any]]] = {
    "manifest": (lambda: json.dumps(json.loads(sound_run()[MANIFEST])["manifest"]).encode(), read_manifest),
    "state": (_sample(f"{ROUND}/state.safetensors"), read_in_run(f"{ROUND}/state.safetensors")),
    "partition": (_sample("partition.safetensors"), read_in_run("partition.safetensors")),
    "environment": (_sample("environment.json"), read_in_run("environment.json")),
    "client_state": (_sample(CLIENT), read_states(CLIENT)),
    "server_state": (_sample(SERVER), read_states(SERVER)),
    "metrics": (_sample("metrics.jsonl"), show("metrics.jsonl")),
    "clients": (_sample("clients.jsonl"), show("clients.jsonl", "--clients")),
}
