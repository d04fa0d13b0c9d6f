"""Files of a run that are not what its checkpoint says: found, and put right where they can be."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.checksum import is_intact, read_verified, write_tensors
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.files import begins_with, has_hash, read_bounded, write_bytes
from proxyfl.core.records import choosing
from proxyfl.core.state import Tensors
from proxyfl.data.partition import Partition
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.directory import RunDirectory, json_lines, measured
from proxyfl.runs.export import ModelCard, save_model
from proxyfl.runs.metrics_log import CLIENTS, files, restore

Whole = Callable[[Tensors], Tensors]
"""What makes a model's tensors of a state's weights."""


def require_same_config(run: RunDirectory, saved: Checkpoint) -> None:
    """Refuse to go on under other settings than those the run began with."""
    if not begins_with(run.config, saved.config, whole=True):
        original = saved.folder / "config.toml"
        raise RunError(
            f"{run.config} was changed since the run began; restore it with 'cp {original} {run.config}', "
            f"or start a new run with 'proxyfl run {run.config} --name NEW'"
        )


def require_same_frozen(run: RunDirectory, saved: Checkpoint, checksums: Mapping[str, str]) -> None:
    """Refuse to go on beside other frozen tensors than those the run began with."""
    known = saved.run_files.get("frozen")
    if known is not None and known != checksums.get("frozen"):
        raise RunError(
            f"the seed gives other initial weights here than where {run.path} was started, and its frozen "
            "tensors are among them; continue with the version of torch in its environment.json"
        )


def is_whole(run: RunDirectory, saved: Checkpoint) -> bool:
    """Whether the run's files are what the checkpoint says; where not, resuming repairs or explains it."""
    models = (run.models / "last.safetensors", run.models / "best.safetensors", run.best_copy)
    return (
        begins_with(run.config, saved.config, whole=True)
        and all(begins_with(file, saved.metrics, whole=True) for file in (run.metrics, run.metrics_copy))
        and saved.clients is not None
        and all(has_clients(file, saved.clients, whole=True) for file in files(run, CLIENTS))
        and _partition_is_intact(run, saved)
        and all(map(is_intact, models))
        and all(_card_of(file) == _best_round(saved) for file in models[1:])
    )


def has_clients(file: Path, content: bytes, *, whole: bool = False) -> bool:
    """Whether a file has what was noted of single clients; where that is nothing, there need be none."""
    return begins_with(file, content, whole=whole) or not (content or os.path.lexists(file))


def lost_clients(run: RunDirectory, saved: Checkpoint) -> list[str]:
    """A warning where what was noted of single clients is damaged in both files."""
    if saved.clients is not None:
        return []
    rounds = f"rounds 1 to {saved.state.round}"
    return [f"{run.client_log} and its copy are damaged: the client records of {rounds} are lost"]


def intact_partition(run: RunDirectory, saved: Checkpoint) -> Partition | None:
    """The partition the run began with; a damaged file is made again, since it is a pure function."""
    try:
        if _partition_is_intact(run, saved):
            return Partition.from_tensors(load(read_bounded(run.partition)))
    except (OSError, SafetensorError, ProxyFLError):
        pass
    print(f"warning: {run.partition} is damaged; rebuilding it from the settings", file=sys.stderr)
    return None


def repair(
    run: RunDirectory, saved: Checkpoint, partition: Partition, whole: Whole, card: dict[str, Any]
) -> list[str]:
    """Write again what the checkpoint verifies and is damaged; gives a warning for what is lost."""
    restore(run, saved.metrics)
    if saved.clients is None:  # begun anew
        for file in files(run, CLIENTS):
            write_bytes(file, b"")
    else:
        restore(run, saved.clients, CLIENTS)
    if not _partition_is_intact(run, saved):
        write_tensors(run.partition, partition.to_tensors())
        if not _partition_is_intact(run, saved):
            raise RunError(f"{run.partition} cannot be rebuilt as it was; restore it from a copy of the run")
    return [*lost_clients(run, saved), *repair_models(run, saved, whole, card)]


def _partition_is_intact(run: RunDirectory, saved: Checkpoint) -> bool:
    return has_hash(run.partition, saved.run_files[run.partition.name])


def repair_models(run: RunDirectory, saved: Checkpoint, whole: Whole, card: dict[str, Any]) -> list[str]:
    """The last model from the checkpoint, the best one from its copy; gives a warning when that is lost.

    ``card`` is what a model says about itself but for the round.
    """
    last, files = run.models / "last.safetensors", (run.models / "best.safetensors", run.best_copy)
    best = _best_round(saved)
    if saved.metrics and not is_intact(last):
        _write_last(last, saved, whole, card)
    if best is None:
        return []
    strange = [file for file in files if _card_of(file) != best]
    if not strange:
        return []
    spare = next((file for file in (*files, last) if _card_of(file) == best), None)
    if spare is None:
        # After a step back, the best model of a round that was taken back: it is played again and writes it.
        strange = [file for file in files if not is_intact(file)]
        ahead = (file for file in files if (_card_of(file) or (0,))[0] > saved.state.round)
        spare = next(ahead, None)
    if spare is None:
        return [f"the best model, of round {best[0]}, is damaged and there is no copy of it: {files[0]}"]
    for file in strange:
        write_bytes(file, spare.read_bytes())
    return []


def _best_round(saved: Checkpoint) -> tuple[int, float] | None:
    """The first of the best rounds that count, and its accuracy."""
    lines = measured(json_lines(saved.metrics))
    best = max(lines, key=choosing, default=None)
    return None if best is None else (best["round"], best["accuracy"])


def _card_of(file: Path) -> tuple[int, float] | None:
    """Which round's model a file says it is, and how good; None where it is damaged or was not measured."""
    try:
        card = json.loads(read_verified(file)[1]["proxyfl"])
        return int(card["round"]), float(card["accuracy"])
    except (OSError, RunError, KeyError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _write_last(place: Path, saved: Checkpoint, whole: Whole, card: dict[str, Any]) -> None:
    accuracy = json.loads(saved.metrics.splitlines()[-1]).get("accuracy")
    weights = whole(saved.state.weights)
    save_model(place, weights, ModelCard(**card, round=saved.state.round, accuracy=accuracy))
