"""proxyfl: federated semi-supervised learning, with exact resume.

>>> import proxyfl
>>> run = proxyfl.Experiment("proxyfl", "digits", rounds=20).run("runs/first")  # doctest: +SKIP
>>> run.summary.mean_last                                                        # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxyfl import results
    from proxyfl.aggregation.base import Aggregator
    from proxyfl.aggregation.build import register_aggregator
    from proxyfl.core.config import KeepSettings as Keep
    from proxyfl.core.config import TrainSettings as Train
    from proxyfl.core.config import setting
    from proxyfl.core.errors import ProxyFLError
    from proxyfl.data.dataset import Dataset
    from proxyfl.data.partition import Partition
    from proxyfl.data.partition import make_partition as partition
    from proxyfl.data.sources import load as load_dataset
    from proxyfl.data.sources import register as register_dataset
    from proxyfl.methods.base import Addon, Method
    from proxyfl.methods.registry import Recipe, Shown, register_addon
    from proxyfl.methods.registry import register as register_method
    from proxyfl.models import register as register_model
    from proxyfl.runs.experiment import Experiment, resume
    from proxyfl.runs.export import load_model
    from proxyfl.runs.federation import Federation
    from proxyfl.runs.run import Run

_HOMES = {
    "Addon": "proxyfl.methods.base",
    "Dataset": "proxyfl.data.dataset",
    "Experiment": "proxyfl.runs.experiment",
    "Federation": "proxyfl.runs.federation",
    "Keep": "proxyfl.core.config:KeepSettings",
    "Method": "proxyfl.methods.base",
    "Partition": "proxyfl.data.partition",
    "ProxyFLError": "proxyfl.core.errors",
    "Recipe": "proxyfl.methods.registry",
    "Run": "proxyfl.runs.run",
    "Shown": "proxyfl.methods.registry",
    "Train": "proxyfl.core.config:TrainSettings",
    "load_dataset": "proxyfl.data.sources:load",
    "load_model": "proxyfl.runs.export",
    "partition": "proxyfl.data.partition:make_partition",
    "register_addon": "proxyfl.methods.registry",
    "register_dataset": "proxyfl.data.sources:register",
    "register_method": "proxyfl.methods.registry:register",
    "register_model": "proxyfl.models:register",
    "results": "proxyfl.results",
    "resume": "proxyfl.runs.experiment",
    "setting": "proxyfl.core.config",
    "Aggregator": "proxyfl.aggregation.base",
    "register_aggregator": "proxyfl.aggregation.build",
}

__all__ = [
    "Addon",
    "Aggregator",
    "Dataset",
    "Experiment",
    "Federation",
    "Keep",
    "Method",
    "Partition",
    "ProxyFLError",
    "Recipe",
    "Run",
    "Shown",
    "Train",
    "load_dataset",
    "load_model",
    "partition",
    "register_addon",
    "register_aggregator",
    "register_dataset",
    "register_method",
    "register_model",
    "results",
    "resume",
    "setting",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``proxyfl --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'proxyfl' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
