"""Checkpoints: the server's state and the config, verified by a manifest.

A checkpoint is a folder that is written aside and renamed, so it is there whole or not at all. Its manifest
holds the SHA-256 of every file in it, of the run's other files, of the metrics and the notes on clients so
far and of itself; what does not match is never used.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.errors import RunError
from proxyfl.core.files import (
    JSON_SWELLS,
    SHORT,
    read_bounded,
    sha256,
    sync_folder,
    write_bytes,
    write_tensors,
)
from proxyfl.core.state import ServerState
from proxyfl.federation.client_store import CURE, ClientStore
from proxyfl.runs.directory import FORMAT, RunDirectory
from proxyfl.runs.metrics_log import CLIENTS, METRICS, Mark, verified
from proxyfl.runs.schema import require_records, require_rows, require_state

NOTHING = Mark.of(b"")
_NAME = re.compile(r"round-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """Verified: the state, the metrics up to it, the bytes of config.toml, hashes of the run's files.

    ``clients`` is what was noted of single clients; None where that is damaged, which no round depends on.
    """

    folder: Path
    state: ServerState
    metrics: bytes
    config: bytes
    run_files: dict[str, str]
    clients: bytes | None = b""


def folders(run: RunDirectory) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not run.checkpoints.is_dir():
        return []
    found = [path for path in run.checkpoints.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def round_of(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))


def save(
    run: RunDirectory,
    state: ServerState,
    metrics: Mark,
    keep: int,
    run_files: dict[str, str],
    config: bytes | None = None,
    *,
    clients: Mark = NOTHING,
) -> Path:
    """Write a checkpoint aside, rename it, and let go of the oldest ones. ``config`` is the run's where it is
    not given; ``clients`` marks what was noted of single clients.
    """
    name = f"round-{state.round:08d}"
    aside, place = run.checkpoints / f".{name}.aside", run.checkpoints / name
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir()
    write_tensors(aside / "state.safetensors", state.to_tensors())
    write_bytes(aside / "config.toml", run.config.read_bytes() if config is None else config)
    files = {file.name: sha256(file) for file in sorted(aside.iterdir())}
    manifest = {
        "format": FORMAT,
        "round": state.round,
        "files": files,
        METRICS: asdict(metrics),
        CLIENTS: asdict(clients),
        "run": run_files,
    }
    write_bytes(aside / "manifest.json", _with_checksum(manifest))
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    sync_folder(run.checkpoints)
    # Younger ones were damaged, else the run had gone on from them: they do not count.
    for old in [folder for folder in folders(run) if round_of(folder) <= state.round][keep:]:
        shutil.rmtree(old)
    return place


def load_newest(run: RunDirectory, *, states: bool = False) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that is intact, and a warning for each newer one that is not.

    With ``states``, what clients wrote since the oldest checkpoint must be intact, too: going further back
    makes it again.
    """
    faults: list[str] = []
    known = folders(run)
    for folder in known:
        try:
            saved = read(folder)
            if states:
                _require_states(run, saved, since=round_of(known[-1]))
            return saved, [f"{fault}; using the checkpoint before it" for fault in faults]
        except RunError as error:
            faults.append(str(error).removesuffix(f"; {CURE}"))
    damage = f" ({'; '.join(faults)})" if faults else ""
    raise RunError(f"{run.path} has no intact checkpoint{damage}; start again under another --name")


def read(folder: Path) -> Checkpoint:
    """A checkpoint, every byte of it verified."""
    try:
        manifest = _opened(read_bounded(folder / "manifest.json", JSON_SWELLS, SHORT))
        if manifest["format"] != FORMAT:
            raise RunError(f"{folder} has format {manifest['format']}; this version reads format {FORMAT}")
        content = {name: read_bounded(folder / name) for name in ("state.safetensors", "config.toml")}
        for name, data in content.items():
            if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
                raise RunError(f"{folder / name} is damaged")
        state = ServerState.from_tensors(load(content["state.safetensors"]))
        metrics = verified(RunDirectory(folder.parent.parent), Mark(**manifest["metrics"]))
        require_state(state, round_of(folder))
        require_records([json.loads(line) for line in metrics.splitlines()])
        run_files = manifest["run"]
        if not all(isinstance(run_files[name], str) for name in ("data", "partition.safetensors")):
            raise ValueError("the manifest names no hashes of the run's files")
        clients = _clients(RunDirectory(folder.parent.parent), _mark(manifest, CLIENTS))
        return Checkpoint(folder, state, metrics, content["config.toml"], run_files, clients)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError, RuntimeError) as error:
        raise RunError(f"{folder} is damaged ({type(error).__name__})") from error


def manifests(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """What the checkpoints say about the run's files, newest first; those that cannot be read say nothing."""
    for folder in folders(run):
        try:
            yield _opened(read_bounded(folder / "manifest.json", JSON_SWELLS, SHORT))
        except (OSError, RunError, ValueError, KeyError, TypeError, RecursionError):
            continue


def marks(run: RunDirectory, log: str = METRICS) -> list[Mark]:
    """How much of a log the checkpoints verify, newest first."""
    return [_mark(manifest, log) for manifest in manifests(run)]


def _mark(manifest: dict[str, Any], log: str) -> Mark:
    """Of a log; runs of earlier versions have noted nothing of single clients."""
    return NOTHING if log == CLIENTS and log not in manifest else Mark(**manifest[log])


def _clients(run: RunDirectory, mark: Mark) -> bytes | None:
    """What was noted of single clients, None where it is damaged."""
    try:
        content = verified(run, mark, CLIENTS)
        require_rows([json.loads(line) for line in content.splitlines()])
        return content
    except (RunError, ValueError, RecursionError):
        return None


def _require_states(run: RunDirectory, saved: Checkpoint, since: int) -> None:
    """Refuse a checkpoint if what clients, or the server for them, wrote in the rounds after ``since`` is
    damaged: those rounds can be played again.
    """
    clients, server, versions = ClientStore(run.clients), ClientStore(run.server), saved.state.versions
    recent = versions.rounds > since
    for client, round in zip(
        versions.clients[recent].tolist(), versions.rounds[recent].tolist(), strict=True
    ):
        clients.load(client, round)
    if run.server.is_dir():
        for line in map(json.loads, saved.metrics.splitlines()[since:]):
            for client in line.get("clients", ()):
                if server.has(client, line["round"]):
                    server.load(client, line["round"])


def _with_checksum(manifest: dict[str, Any]) -> bytes:
    body = json.dumps(manifest, sort_keys=True)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": checksum, "manifest": manifest}, sort_keys=True, indent=1).encode()


def _opened(raw: bytes) -> dict[str, Any]:
    outer = json.loads(raw)
    manifest: dict[str, Any] = outer["manifest"]
    body = json.dumps(manifest, sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
        raise ValueError("the manifest does not match its own hash")
    if not all(isinstance(manifest[name], dict) for name in ("files", "run")):
        raise ValueError("the manifest names no files")
    for log in (METRICS, CLIENTS):
        _mark(manifest, log)  # raises where it is none
    return manifest
