"""proxyfl: federated semi-supervised learning, with exact resume.

>>> import proxyfl
>>> run = proxyfl.Experiment("proxyfl", "digits", rounds=20).run("runs/first")  # doctest: +SKIP
>>> run.summary.mean_last                                                        # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxyfl.aggregation.base import Aggregator
    from proxyfl.aggregation.build import register_aggregator
    from proxyfl.core.errors import ProxyFLError
    from proxyfl.data.partition import federate
    from proxyfl.data.sources import load as load_dataset
    from proxyfl.methods.base import Addon, Method
    from proxyfl.methods.registry import Recipe
    from proxyfl.methods.registry import register as register_method
    from proxyfl.models import register as register_model
    from proxyfl.runs.experiment import Experiment, resume
    from proxyfl.runs.export import load_model
    from proxyfl.runs.run import Run

_HOMES = {
    "Experiment": "proxyfl.runs.experiment",
    "resume": "proxyfl.runs.experiment",
    "Run": "proxyfl.runs.run",
    "load_model": "proxyfl.runs.export",
    "federate": "proxyfl.data.partition",
    "load_dataset": "proxyfl.data.sources:load",
    "Method": "proxyfl.methods.base",
    "Addon": "proxyfl.methods.base",
    "Recipe": "proxyfl.methods.registry",
    "register_method": "proxyfl.methods.registry:register",
    "register_model": "proxyfl.models:register",
    "Aggregator": "proxyfl.aggregation.base",
    "register_aggregator": "proxyfl.aggregation.build",
    "ProxyFLError": "proxyfl.core.errors",
}

__all__ = [
    "Addon",
    "Aggregator",
    "Experiment",
    "Method",
    "ProxyFLError",
    "Recipe",
    "Run",
    "federate",
    "load_dataset",
    "load_model",
    "register_aggregator",
    "register_method",
    "register_model",
    "resume",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``proxyfl --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'proxyfl' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)
