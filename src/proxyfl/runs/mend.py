"""Files of a run that are not what its checkpoint says: found, and put right where they can be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load

from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.files import sha256, write_bytes, write_tensors
from proxyfl.core.seal import is_intact, read_sealed
from proxyfl.data.partition import Partition
from proxyfl.runs.assembly import assemble, model_card
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.export import ModelCard, save_model
from proxyfl.runs.ledger import restore
from proxyfl.runs.simulation import Simulation


def require_same_config(run: RunDirectory, saved: Checkpoint) -> None:
    """Refuse to go on under other settings than those the run began with."""
    if run.config.read_bytes() != saved.config:
        original = saved.folder / "config.toml"
        raise RunError(
            f"{run.config} was changed since the run began; put it back with 'cp {original} {run.config}', "
            f"or start a new run with 'proxyfl run {run.config} --name NEW'"
        )


def is_whole(run: RunDirectory, saved: Checkpoint) -> bool:
    """Whether the run's files are what the checkpoint says; where not, resuming mends or explains it."""
    metrics = run.metrics.read_bytes() if run.metrics.is_file() else b""
    return (
        run.config.read_bytes() == saved.config
        and metrics == saved.metrics
        and _partition_is_intact(run, saved)
        and all(is_intact(run.models / f"{which}.safetensors") for which in ("last", "best"))
    )


def intact_partition(run: RunDirectory, saved: Checkpoint) -> Partition | None:
    """The partition the run began with; a damaged file is made again, since it is a pure function."""
    try:
        if _partition_is_intact(run, saved):
            return Partition.from_tensors(load(run.partition.read_bytes()))
    except (OSError, SafetensorError, ProxyFLError):
        pass
    print(f"warning: {run.partition} is damaged; making it again from the settings", file=sys.stderr)
    return None


def mend(run: RunDirectory, saved: Checkpoint, config: Config, simulation: Simulation) -> list[str]:
    """Write again what the checkpoint vouches for and is damaged; gives a warning for what is lost."""
    restore(run, saved.metrics)
    if not _partition_is_intact(run, saved):
        write_tensors(run.partition, simulation.partition.to_tensors())
        if not _partition_is_intact(run, saved):
            raise RunError(
                f"{run.partition} cannot be made again as it was; put it back from a copy of the run"
            )
    return _mend_models(run, saved, config, simulation)


def _partition_is_intact(run: RunDirectory, saved: Checkpoint) -> bool:
    return run.partition.is_file() and sha256(run.partition) == saved.run_files[run.partition.name]


def _mend_models(run: RunDirectory, saved: Checkpoint, config: Config, simulation: Simulation) -> list[str]:
    """The last model from the checkpoint, the best one from its copy; gives a warning when that is lost."""
    last, best = run.models / "last.safetensors", run.models / "best.safetensors"
    accuracies = [json.loads(line)["accuracy"] for line in saved.metrics.splitlines()]
    if not accuracies:
        return []
    if not is_intact(last):
        _write_last(run, saved, config, simulation, accuracies[-1])
    files = (best, run.best_copy)
    if all(map(is_intact, files)):
        return []
    wanted = accuracies.index(max(accuracies)) + 1
    # A model of a round that no checkpoint holds yet is as good: that round is played again and writes it.
    spare = next((file for file in (*files, last) if _usable(file, wanted, saved.state.round)), None)
    if spare is None:
        return [f"the best model, of round {wanted}, is damaged and there is no copy of it: {best}"]
    for file in files:
        if not is_intact(file):
            write_bytes(file, spare.read_bytes())
    return []


def _usable(file: Path, wanted: int, committed: int) -> bool:
    """Whether a file is the model of the wanted round, or the best one of a round that will be repeated."""
    try:
        round = json.loads(read_sealed(file)[1]["proxyfl"])["round"]
    except (OSError, RunError, KeyError, ValueError, TypeError):
        return False
    return bool(round == wanted or (round > committed and file.name != "last.safetensors"))


def _write_last(
    run: RunDirectory, saved: Checkpoint, config: Config, simulation: Simulation, accuracy: float
) -> None:
    federation, _ = assemble(run, config, simulation, workers=0)
    card = ModelCard(**model_card(config, simulation, federation), round=saved.state.round, accuracy=accuracy)
    weights = federation.method.model(saved.state.weights)
    save_model(run.models / "last.safetensors", weights, card)
