"""proxyfl: federated semi-supervised learning, with exact resume.

Many clients hold a few labelled images and many unlabelled ones; together they train one model.

From objects, without a name or a file:

>>> import proxyfl
>>> from proxyfl.methods import ProxyFL
>>> data = proxyfl.load_dataset("digits")  # or proxyfl.Dataset.of(images, labels, test=…)
>>> split = proxyfl.partition(data, clients=10, per_class=13, alpha=0.1)
>>> federation = proxyfl.Federation(data, split, method=ProxyFL(tau=0.9), width=1, rounds=20)
>>> for report in federation.rounds():                                           # doctest: +SKIP
...     print(report.number, report.accuracy)

By name, written down as a run that can be killed at any moment and resumed:

>>> run = proxyfl.Experiment("proxyfl", "digits", rounds=20).run("runs/first")   # doctest: +SKIP
>>> run.summary.mean_last                                                        # doctest: +SKIP

What to look at next: ``Federation`` (objects), ``Experiment`` and ``resume`` (names), ``Run`` and ``results``
(what came of it), ``proxyfl.methods``, ``proxyfl.aggregation``, and ``register_method``, ``register_model``,
``register_dataset``, ``register_addon``, ``register_aggregator`` for what you bring yourself.
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
    from proxyfl.core.errors import ProxyFLError
    from proxyfl.core.settings import setting
    from proxyfl.core.views import TextSettings as Texts
    from proxyfl.core.views import VectorSettings as Vectors
    from proxyfl.data.dataset import Dataset
    from proxyfl.data.partition import Partition
    from proxyfl.data.partition import make_partition as partition
    from proxyfl.data.sources import load as load_dataset
    from proxyfl.data.sources import register as register_dataset
    from proxyfl.data.stream import ViewSettings as Views
    from proxyfl.encoders import Encoder, TextEncoder, encode
    from proxyfl.engines.cluster.engine import RayEngine
    from proxyfl.methods.base import Addon, Method
    from proxyfl.methods.registry import Recipe, Shown, register_addon
    from proxyfl.methods.registry import register as register_method
    from proxyfl.models import LoRA
    from proxyfl.models import register as register_model
    from proxyfl.runs.experiment import Experiment, resume
    from proxyfl.runs.export import load_model
    from proxyfl.runs.federation import Federation
    from proxyfl.runs.run import Run

_HOMES = {
    "Addon": "proxyfl.methods.base",
    "Dataset": "proxyfl.data.dataset",
    "Encoder": "proxyfl.encoders",
    "Experiment": "proxyfl.runs.experiment",
    "Federation": "proxyfl.runs.federation",
    "Keep": "proxyfl.core.config:KeepSettings",
    "LoRA": "proxyfl.models",
    "Method": "proxyfl.methods.base",
    "Partition": "proxyfl.data.partition",
    "ProxyFLError": "proxyfl.core.errors",
    "RayEngine": "proxyfl.engines.cluster.engine",
    "Recipe": "proxyfl.methods.registry",
    "Run": "proxyfl.runs.run",
    "Shown": "proxyfl.methods.registry",
    "TextEncoder": "proxyfl.encoders",
    "Texts": "proxyfl.core.views:TextSettings",
    "Train": "proxyfl.core.config:TrainSettings",
    "Vectors": "proxyfl.core.views:VectorSettings",
    "Views": "proxyfl.data.stream:ViewSettings",
    "encode": "proxyfl.encoders",
    "load_dataset": "proxyfl.data.sources:load",
    "load_model": "proxyfl.runs.export",
    "partition": "proxyfl.data.partition:make_partition",
    "register_addon": "proxyfl.methods.registry",
    "register_dataset": "proxyfl.data.sources:register",
    "register_method": "proxyfl.methods.registry:register",
    "register_model": "proxyfl.models:register",
    "results": "proxyfl.results",
    "resume": "proxyfl.runs.experiment",
    "setting": "proxyfl.core.settings",
    "Aggregator": "proxyfl.aggregation.base",
    "register_aggregator": "proxyfl.aggregation.build",
}

__all__ = [
    "Addon",
    "Aggregator",
    "Dataset",
    "Encoder",
    "Experiment",
    "Federation",
    "Keep",
    "LoRA",
    "Method",
    "Partition",
    "ProxyFLError",
    "RayEngine",
    "Recipe",
    "Run",
    "Shown",
    "TextEncoder",
    "Texts",
    "Train",
    "Vectors",
    "Views",
    "encode",
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


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
