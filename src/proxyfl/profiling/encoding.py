"""What a frozen encoder costs before the first round: its views drawn, and itself."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from proxyfl.core.config import Config
from proxyfl.core.rng import SERVER, rng
from proxyfl.encoders import load_encoder
from proxyfl.encoders.encoding import in_batches
from proxyfl.encoders.views import View, views_of
from proxyfl.profiling.phases import Encoding, Phase
from proxyfl.runs.simulation import load_samples

SAMPLES, BATCH = 128, 64
"""Training samples that are measured, and how many of them are encoded at once."""


def measure_encoding(config: Config, root: Path | None = None) -> Encoding:
    """Encode a few of the training samples as a run does, and keep nothing."""
    dataset = load_samples(config, root)
    every = dataset.train.images
    generator = rng(0, 0, SERVER, "profile")
    some = every[torch.randperm(len(every), generator=generator)[:SAMPLES]]
    encoder = load_encoder(config.model.encoder, config.model.encoder_hash)
    counts = config.encoder
    views = views_of(every, counts.weak, counts.strong, flip=dataset.flip, drawing=config.texts)
    in_batches(encoder, some[:BATCH], BATCH)  # to warm up
    spent, seen = {"weak views": 0.0, "strong views": 0.0}, [some]
    for name, draw, count in (
        ("weak views", views.draw_weak, views.weak),
        ("strong views", views.draw_strong, views.strong),
    ):
        spent[name] = _timed(seen, draw, count, generator)
    start = time.perf_counter()
    for view in seen:
        in_batches(encoder, view, BATCH)
    spent["encoder"] = time.perf_counter() - start
    phases = tuple(Phase(name, 1000 * seconds / len(some)) for name, seconds in spent.items())
    return Encoding(phases, len(every), views.total, dataset.train.called)


def _timed(seen: list[Tensor], draw: View, count: int, generator: torch.Generator) -> float:
    """Seconds that so many views of the first one take; they are added to what is there."""
    start = time.perf_counter()
    seen += [draw(seen[0], generator) for _ in range(count)]
    return time.perf_counter() - start
