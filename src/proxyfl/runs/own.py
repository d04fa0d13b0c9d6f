"""The protocol for people's own data: what the preset ``own`` chooses from what there is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.network import ModelSettings
from proxyfl.core.trees import Tree, table_in
from proxyfl.data.look import Look, look
from proxyfl.data.partition import NATURAL

PRESET = "own"
SIZES = (8, 16, 24, 32, 48, 64)
"""Sides in pixels that images are brought to: the largest that the median image fills."""
MOST_CLIENTS, PER_CLIENT = 20, 100
"""Where the data names no clients: one for so many training images, at least 2 and at most so many."""


def chosen(name: str, asked: Mapping[str, Any], root: Path | str | None = None) -> Tree:
    """Settings that fit the data called ``name``; ``asked`` is what the person set."""
    keys, clients = table_in(asked, "data").get("keys", ""), table_in(asked, "partition").get("clients", 0)
    found = look(name, root, keys if isinstance(keys, str) else "")
    return choose(name, found, clients if isinstance(clients, int) else 0)


def choose(name: str, found: Look, asked_clients: int = 0) -> Tree:
    """The rule.

    - Clients: those that the data names, as they are (``partition.scheme = "natural"``); else one for every
      100 training images, at least 2 and at most 20. At most 8 take part in a round.
    - Labels: all there are, where some images are unlabelled; else a tenth of every class.
    - Image size: that of the images, where all have the same up to 64 pixels; else the largest of 8, 16, 24,
      32, 48 and 64 that the median image fills.
    - Network: resnet8 for images, mlp for vectors. For texts a frozen encoder has to be named.
    - Width 1 below 5,000 training images, 2 below 20,000, else 4.
    - Batch: 16 labelled images where a client has fewer than 64, 32 below 256, else 64.
    - Epochs: 5 where a client has fewer than 1,000 images, else 2. Rounds: 30 below 20,000 images, else 100.
    - Every metric is measured, since classes of own data are seldom balanced.
    """
    natural = bool(found.clients) and asked_clients in (0, len(found.clients))
    clients = asked_clients or len(found.clients) or min(MOST_CLIENTS, max(2, found.train // PER_CLIENT))
    ratio = 1.0 if found.unlabelled else 0.1
    share = found.labelled * ratio / clients
    tree: Tree = {
        "data": {"name": name, "image_size": _size(found) if found.called == "images" else 0},
        "labels": {"ratio": ratio, "rule": "stratified"},
        "partition": {"clients": clients},
        "model": {"width": _step(found.train, (5_000, 1), (20_000, 2), otherwise=4)},
        "train": {
            "batch": _step(share, (64, 16), (256, 32), otherwise=64),
            "epochs": _step(found.train / clients, (1_000, 5), otherwise=2),
        },
        "federation": {
            "per_round": min(8, clients),
            "rounds": _step(found.train, (20_000, 30), otherwise=100),
        },
        "keep": {"metrics": "all"},
    }
    if natural:
        tree["partition"]["scheme"] = NATURAL
    if found.features:
        tree["model"]["name"] = "mlp"
    return tree


def _size(found: Look) -> int:
    if len(set(found.sides)) == 1 and SIZES[0] <= found.side <= SIZES[-1]:
        return found.side
    return max(size for size in SIZES if size <= max(SIZES[0], found.side))


def _step(value: float, *steps: tuple[float, int], otherwise: int) -> int:
    """The number of the first step that ``value`` stays below."""
    return next((number for bound, number in steps if value < bound), otherwise)


def summary(config: Config) -> str:
    """What was chosen, in one line."""
    partition, train, federation = config.partition, config.train, config.federation
    clients = f"{partition.clients} clients ({partition.scheme}), {federation.per_round} per round"
    pixels, model = config.data.image_size, config.model
    size = f"{f'images of {pixels} pixels' if pixels else f'network {model.trained}'}, width {model.width}"
    if not pixels and model == ModelSettings(width=model.width):  # of texts, as long as nothing was set
        size = "a frozen encoder is required (model.name = frozen:hf:FOLDER)"
    steps = f"batches of {train.batch}, {train.epochs} epochs, {federation.rounds} rounds"
    labels = f"{100 * config.labels.ratio:g} % of the labels"
    return f"chosen from the data: {size}, {clients}, {steps}, {labels}; change any of it with --set"
