"""Which checkpoints a run has, and what their manifests say about its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxyfl.core.errors import RunError
from proxyfl.core.files import JSON_SWELLS, SHORT, read_bounded
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.metrics_log import CLIENTS, METRICS, Mark

NOTHING = Mark.of(b"")
_NAME = re.compile(r"round-(\d{8})")


def folders(run: RunDirectory) -> list[Path]:
    """Checkpoint folders, newest first."""
    if not run.checkpoints.is_dir():
        return []
    found = [path for path in run.checkpoints.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def round_of(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))


def of(run: RunDirectory) -> Iterator[dict[str, Any]]:
    """What the checkpoints say about the run's files, newest first; those that cannot be read say nothing."""
    for folder in folders(run):
        try:
            yield opened(read_bounded(folder / "manifest.json", JSON_SWELLS, SHORT))
        except (OSError, RunError, ValueError, KeyError, TypeError, RecursionError):
            continue


def marks(run: RunDirectory, log: str = METRICS) -> list[Mark]:
    """How much of a log the checkpoints verify, newest first."""
    return [mark_of(manifest, log) for manifest in of(run)]


def mark_of(manifest: dict[str, Any], log: str) -> Mark:
    """Of a log; runs of earlier versions have noted nothing of single clients."""
    return NOTHING if log == CLIENTS and log not in manifest else Mark(**manifest[log])


def with_checksum(manifest: dict[str, Any]) -> bytes:
    body = json.dumps(manifest, sort_keys=True)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return json.dumps({"sha256": checksum, "manifest": manifest}, sort_keys=True, indent=1).encode()


def opened(raw: bytes) -> dict[str, Any]:
    outer = json.loads(raw)
    manifest: dict[str, Any] = outer["manifest"]
    body = json.dumps(manifest, sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
        raise ValueError("the manifest does not match its own hash")
    if not all(isinstance(manifest[name], dict) for name in ("files", "run")):
        raise ValueError("the manifest names no files")
    for log in (METRICS, CLIENTS):
        mark_of(manifest, log)  # raises where it is none
    return manifest
