"""Whether objects that somebody brings fit together, asked before any round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxyfl.aggregation import Aggregator
from proxyfl.core.config import KeepSettings, TrainSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Tensors
from proxyfl.data.dataset import Dataset
from proxyfl.data.partition import Partition
from proxyfl.federation.client import ClientTrainer
from proxyfl.methods.base import Method
from proxyfl.runs.start import read_weights


def weights_of(weights: Tensors | nn.Module | str | Path | None) -> Tensors:
    """Tensors to start from, out of a network, a model file or a run."""
    if isinstance(weights, str | Path):
        return read_weights(Path(weights).expanduser())
    return dict(weights.state_dict() if isinstance(weights, nn.Module) else weights or {})


def require_kinds(partition: Any, method: Any, train: Any, aggregator: Any, keep: Any) -> None:
    """Refuse what is no object of the kind that is wanted, with the way to make one."""
    for name, value, kinds, cure in (
        ("partition", partition, (Partition,), "make one with proxyfl.partition(data, …)"),
        ("method", method, (Method, str), "give a name, or an object such as ProxyFL(tau=0.9)"),
        ("train", train, (TrainSettings, type(None)), "give proxyfl.Train(epochs=…, lr=…)"),
        ("aggregator", aggregator, (Aggregator, type(None)), "give an object such as aggregation.Median()"),
        ("keep", keep, (KeepSettings, type(None)), "give proxyfl.Keep(…)"),
    ):
        if not isinstance(value, kinds):
            given = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} is {given}; {cure}")


def require_numbers(dataset: Dataset) -> None:
    """Refuse texts that no encoder has read."""
    if dataset.is_texts:
        raise ConfigError(
            f"'{dataset.name}' holds texts, which a frozen encoder has to read first; choose one with "
            "model.name = frozen:hf:FOLDER, or in Python with proxyfl.encode(data, encoder)"
        )


def require_fit(trainer: ClientTrainer) -> None:
    """Refuse a network that cannot take these samples or name these classes, before any round."""
    built, classes = trainer.factory, trainer.classes
    network = trainer.new_network().eval()
    images = torch.zeros((2, *built.shape))
    try:
        with torch.inference_mode():
            shape = tuple(network(images).shape)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if not built.image_size:
            raise ConfigError(
                f"model '{built.name}' cannot take vectors, and the data holds vectors of {built.channels} "
                "features; choose mlp or linear (model.name = mlp)"
            ) from error
        raise ConfigError(
            f"model '{built.name}' cannot take images of shape {built.shape}: {error}"
        ) from error
    if shape != (2, classes):
        raise ConfigError(
            f"model '{built.name}' gives {shape[1:]} numbers per image; there are {classes} classes"
        )
