"""Checkpoints: the server's state, the metrics so far and the config, sealed by a manifest.

A checkpoint is a folder that is written aside and renamed, so it is there whole or not at all. Its manifest
holds the SHA-256 of every file in it and of itself; what does not match is never used.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.errors import RunError
from proxyfl.core.files import sha256, sync_folder, write_bytes, write_tensors
from proxyfl.core.state import ServerState
from proxyfl.runs.directory import FORMAT, RunDirectory

_NAME = re.compile(r"round-(\d{8})")


@dataclass(frozen=True)
class Checkpoint:
    """Verified: the state, the bytes of metrics.jsonl and config.toml, hashes of the run's files and data."""

    folder: Path
    state: ServerState
    metrics: bytes
    config: bytes
    run_files: dict[str, str]


def folders(run: RunDirectory) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not run.checkpoints.is_dir():
        return []
    found = [path for path in run.checkpoints.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def save(run: RunDirectory, state: ServerState, metrics: bytes, keep: int, run_files: dict[str, str]) -> None:
    """Write a checkpoint aside, rename it, and let go of the oldest ones."""
    name = f"round-{state.round:08d}"
    aside, place = run.checkpoints / f".{name}.aside", run.checkpoints / name
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir()
    write_tensors(aside / "state.safetensors", state.to_tensors())
    write_bytes(aside / "metrics.jsonl", metrics)
    write_bytes(aside / "config.toml", run.config.read_bytes())
    files = {file.name: sha256(file) for file in sorted(aside.iterdir())}
    manifest = {"format": FORMAT, "round": state.round, "files": files, "run": run_files}
    write_bytes(aside / "manifest.json", _sealed(manifest))
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    sync_folder(run.checkpoints)
    for old in folders(run)[keep:]:
        shutil.rmtree(old)


def load_newest(run: RunDirectory) -> tuple[Checkpoint, list[str]]:
    """The newest checkpoint that is intact, and a warning for each newer one that is not."""
    warnings: list[str] = []
    for folder in folders(run):
        try:
            return read(folder), warnings
        except RunError as error:
            warnings.append(f"{error}; using the checkpoint before it")
    damage = f" ({'; '.join(warnings)})" if warnings else ""
    raise RunError(f"{run.path} has no intact checkpoint{damage}; start again under another --name")


def read(folder: Path) -> Checkpoint:
    """A checkpoint, every byte of it verified."""
    try:
        manifest = _opened((folder / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise RunError(f"{folder} has format {manifest['format']}, this version reads {FORMAT}")
        content = {
            name: (folder / name).read_bytes()
            for name in ("state.safetensors", "metrics.jsonl", "config.toml")
        }
        for name, data in content.items():
            if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
                raise RunError(f"{folder / name} is damaged")
        state = ServerState.from_tensors(load(content["state.safetensors"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"{folder} is damaged ({type(error).__name__})") from error
    return Checkpoint(folder, state, content["metrics.jsonl"], content["config.toml"], manifest["run"])


def _sealed(manifest: dict[str, Any]) -> bytes:
    body = json.dumps(manifest, sort_keys=True)
    seal = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": seal, "manifest": manifest}, sort_keys=True, indent=1).encode()


def _opened(raw: bytes) -> dict[str, Any]:
    outer = json.loads(raw)
    manifest: dict[str, Any] = outer["manifest"]
    body = json.dumps(manifest, sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
        raise ValueError("the manifest does not match its own hash")
    return manifest
