"""Settings by the short names that they have on the command line and in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.trees import Tree, nested

COMMON = {
    "data": "data.name",
    "label_ratio": "labels.ratio",
    "scenario": "labels.where",
    "alpha": "partition.alpha",
    "clients": "partition.clients",
    "per_round": "federation.per_round",
    "rounds": "federation.rounds",
    "width": "model.width",
    "weights": "model.weights",
    "image_size": "data.image_size",
    "subset": "data.subset",
    "seed": "seed",
    "device": "compute.device",
    "dtype": "compute.dtype",
    "fidelity": "fidelity",
}
"""Settings that have a short name."""


def from_short(values: Mapping[str, Any]) -> Tree:
    """Keyword settings: short names, or full ones with dots or double underscores (``method__tau``)."""
    flat: Tree = {}
    for key, value in values.items():
        if value is not None:
            full = COMMON.get(key, key.replace("__", "."))
            if "." not in full and full not in ("seed", "fidelity", "preset"):
                raise ConfigError(f"unknown setting '{key}'; {nearest(key, COMMON)}")
            flat[full] = value
    return nested(flat)
