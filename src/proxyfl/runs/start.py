"""The weights a run starts from, where they are not the seed's: another run's model, or a model file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from proxyfl.core.checksum import read_foreign
from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import Tensors, content_hash
from proxyfl.encoders import settle_encoder
from proxyfl.methods import registry
from proxyfl.runs.directory import AT_SITES, RunDirectory
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import Simulation


def settle_start(config: Config) -> Config:
    """The config with the places of its weights and its frozen encoder written out, and the hash of each;
    unchanged where it has none.
    """
    config = settle_encoder(settle_place(config, Path.cwd()))
    model = config.model
    if not model.weights or model.weights_hash:
        return config
    model = dataclasses.replace(model, weights_hash=content_hash(read_weights(Path(model.weights))))
    return dataclasses.replace(config, model=model)


def settle_place(config: Config, folder: Path) -> Config:
    """The config with the place of its weights written out, as seen from a folder."""
    if not config.model.weights:
        return config
    place = (folder / Path(config.model.weights).expanduser()).resolve()
    return dataclasses.replace(config, model=dataclasses.replace(config.model, weights=str(place)))


def load_start(config: Config, simulation: Simulation | None = None) -> Tensors:
    """The weights that a new run starts from; empty where they are the seed's. In a simulation they must not
    know labels which it hides.
    """
    if not config.model.weights_hash:
        return {}
    if not config.model.weights:
        raise ConfigError("model.weights_hash is set without model.weights; name the model file or run")
    place = Path(config.model.weights)
    tensors = read_weights(place)
    if content_hash(tensors) != config.model.weights_hash:
        raise ConfigError(
            f"the weights at {place} are not those this config was made for; restore "
            "them, or clear model.weights_hash to start from the present ones"
        )
    source = _run_of(place)
    if source and simulation is not None:
        _require_known_labels(source, config, simulation)
    return tensors


def read_start(run: RunDirectory, config: Config) -> Tensors:
    """The weights a run started from; empty where it started from the seed's."""
    wanted = config.model.weights_hash
    if not wanted:
        return {}
    for place in (run.start, Path(config.model.weights)):
        try:
            tensors = read_weights(place)
        except (RunError, ConfigError):
            continue
        if content_hash(tensors) == wanted:
            return tensors
    raise RunError(
        f"{run.start} is missing or damaged, and {config.model.weights} does not "
        "contain the same weights; restore one of them from a copy"
    )


def read_weights(place: Path) -> Tensors:
    """The tensors of a model file, or of a run's last model."""
    file = place / "models" / "last.safetensors" if place.is_dir() else place
    try:
        return read_foreign(file)
    except FileNotFoundError:
        raise ConfigError(
            f"model.weights: {file} does not exist; name a model file, or a run with a finished round"
        ) from None
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror or error}") from None


def _run_of(place: Path) -> Run | None:
    """The run that a model is of, if it lies in one."""
    for folder in (place, place.parent.parent):
        found = RunDirectory(folder)
        if found.config.is_file() and found.checkpoints.is_dir():
            return Run(folder)
    return None


def _require_known_labels(source: Run, config: Config, simulation: Simulation) -> None:
    """Refuse weights that were trained with labels which this run hides: its accuracy would mean nothing."""
    theirs = source.config
    if theirs.data.name != config.data.name or source.environment.get("data") == AT_SITES:
        return
    cure = "train the initial model on the same data, labels and partition, or on another data set"
    method = registry.method_of(theirs)
    if method.oracle:
        raise ConfigError(
            f"{source.path} was trained with every label of {config.data.name}, which this run hides; {cure}"
        )
    if source.environment.get("data") != simulation.fingerprint():
        raise ConfigError(
            f"{source.path} was trained on another selection of {config.data.name}, so it "
            f"may have used labels that this run hides; {cure}"
        )
    if not np.isin(source.partition.all_labelled, simulation.partition.all_labelled).all():
        raise ConfigError(f"{source.path} was trained with labels that this run hides; {cure}")
