"""Checkpoints: the server's state and the config, verified by a manifest.

A checkpoint is a folder that is written aside and renamed, so it is there whole or not at all. Its manifest
holds the SHA-256 of every file in it, of the run's other files, of the metrics and the notes on clients so
far and of itself; what does not match is never used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.checksum import write_tensors
from proxyfl.core.errors import RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded, sha256, sync_folder, write_bytes
from proxyfl.core.state import ServerState
from proxyfl.federation.client_store import CURE, ClientStore
from proxyfl.runs.directory import FORMAT, RunDirectory
from proxyfl.runs.manifests import NOTHING, folders, mark_of, opened, round_of, with_checksum
from proxyfl.runs.metrics_log import CLIENTS, METRICS, Mark, verified
from proxyfl.runs.schema import require_records, require_rows


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
    write_bytes(aside / "manifest.json", with_checksum(manifest))
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
        manifest = opened(read_bounded(folder / "manifest.json", JSON_SWELLS, SHORT))
        if manifest["format"] != FORMAT:
            raise RunError(f"{folder} has format {manifest['format']}; this version reads format {FORMAT}")
        content = {name: read_bounded(folder / name) for name in ("state.safetensors", "config.toml")}
        for name, data in content.items():
            if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
                raise RunError(f"{folder / name} is damaged")
        state = ServerState.from_tensors(load(content["state.safetensors"]))
        metrics = verified(RunDirectory(folder.parent.parent), Mark(**manifest["metrics"]))
        _require_state(state, round_of(folder))
        require_records([json.loads(line) for line in metrics.splitlines()])
        run_files = manifest["run"]
        if not all(isinstance(run_files[name], str) for name in ("data", "partition.safetensors")):
            raise ValueError("the manifest names no hashes of the run's files")
        clients = _clients(RunDirectory(folder.parent.parent), mark_of(manifest, CLIENTS))
        return Checkpoint(folder, state, metrics, content["config.toml"], run_files, clients)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError, RuntimeError) as error:
        raise RunError(f"{folder} is damaged ({type(error).__name__})") from error


def _clients(run: RunDirectory, mark: Mark) -> bytes | None:
    """What was noted of single clients, None where it is damaged."""
    try:
        content = verified(run, mark, CLIENTS)
        require_rows([json.loads(line) for line in content.splitlines()])
        return content
    except (RunError, ValueError, RecursionError):
        return None


def _require_state(state: ServerState, round: int) -> None:
    """Raise :class:`ValueError` where a state cannot be that of this round."""
    if state.round != round:
        raise ValueError(f"its state is of round {state.round}")
    clients, rounds = state.versions.clients, state.versions.rounds
    if any(part.dtype != torch.int64 or part.ndim != 1 for part in (clients, rounds)):
        raise ValueError("its versions are not lists of whole numbers")
    if len(clients) != len(rounds) or (len(clients) and int(clients.min()) < 0):
        raise ValueError("its versions do not belong to clients")
    if bool((rounds > round).any()) or bool((clients[1:] <= clients[:-1]).any()):
        raise ValueError("its versions are of later rounds or not in order")


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
