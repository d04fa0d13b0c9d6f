"""A data set of images or texts turned into one of features, once."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.text import in_words
from proxyfl.core.views import EncoderSettings, TextSettings
from proxyfl.data.dataset import Dataset, Encoded, Split
from proxyfl.data.files import data_root, progress
from proxyfl.data.numbers import statistics
from proxyfl.data.texts import is_texts, lengths
from proxyfl.encoders.cache import Cache, require_room
from proxyfl.encoders.encoder import Encoder, Frozen, TextEncoder
from proxyfl.encoders.views import Views, views_of

VERSION = 1
"""Of what is computed; another one makes every cache anew."""
FOLDER = "features"


def encode(
    dataset: Dataset,
    encoder: Frozen | nn.Module,
    *,
    weak: int = 2,
    strong: int = 2,
    texts: TextSettings | None = None,
    cache: str | Path | None = None,
    batch: int = 64,
) -> Dataset:
    """Encode a data set of images or texts with ``encoder``: a data set with a vector for each sample.

    Training samples are encoded without augmentation and in ``weak`` and ``strong`` views, one of which is
    drawn whenever a method needs a view; other samples without augmentation only. ``texts`` sets how views
    of texts are drawn. Features are computed once for an encoder, a data set and its views, and stored in
    the folder ``cache`` (by default ``features`` in the data folder).

    >>> import proxyfl, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    >>> data = proxyfl.encode(proxyfl.load_dataset("digits"), net)               # doctest: +SKIP
    >>> data.train.images.shape                                                  # doctest: +SKIP
    torch.Size([1300, 5, 16])
    """
    EncoderSettings(weak, strong)
    if dataset.is_vectors:
        raise DataError(f"'{dataset.name}' holds vectors; encoders take images or texts")
    if batch < 1:
        raise ConfigError(f"batch = {batch} is too small; use 1 or more")
    found = encoder_of(encoder, of_texts=dataset.is_texts)
    drawn = views_of(dataset.train.images, weak, strong, flip=dataset.flip, drawing=texts)
    root = data_root() / FOLDER if cache is None else Path(cache).expanduser()
    others = {"test": dataset.test, "validation": dataset.validation}
    splits = {"train": dataset.train} | {name: split for name, split in others.items() if split is not None}
    parts = {
        name: Part(split.images, drawn if name == "train" else drawn.none()) for name, split in splits.items()
    }
    features = encode_parts(found, parts, root, batch)
    seen = {name: Split(features[name][:, 0], splits[name].labels) for name in splits if name != "train"}
    mean, std = statistics(features["train"][:, 0].float().numpy())
    shape = (dataset.channels, dataset.image_size)
    return replace(
        dataset, train=Split(features["train"], dataset.train.labels), test=seen["test"],
        validation=seen.get("validation"), mean=mean, std=std,
        features=dataset.features if dataset.is_texts else (),
        encoded=Encoded(found.called, found.hash, *shape, weak),
    )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Samples that are encoded, and the views of them."""

    samples: Tensor
    views: Views

    @property
    def called(self) -> str:
        return "texts" if is_texts(self.samples) else "images"


def encode_parts(
    encoder: Frozen, parts: Mapping[str, Part], root: Path, batch: int = 64
) -> dict[str, Tensor]:
    """Features (N, views, d) of each part by its name, from the cache in the folder ``root`` or into it."""
    width = encoder(next(part.samples for part in parts.values() if len(part.samples))[:1]).shape[1]
    kept = {
        name: Cache(root / _key(encoder, part), (len(part.samples), part.views.total, width))
        for name, part in parts.items()
        if len(part.samples)
    }
    require_room(list(kept.values()), root)
    for name, cache in kept.items():
        _fill(encoder, parts[name], cache, batch, name)
    nothing = {name: torch.zeros((0, part.views.total, width)).half() for name, part in parts.items()}
    return nothing | {name: cache.open() for name, cache in kept.items()}


def encoder_of(encoder: Frozen | nn.Module, *, of_texts: bool) -> Frozen:
    """An encoder of texts or images, out of a network."""
    if isinstance(encoder, Frozen):
        return encoder
    return (TextEncoder if of_texts else Encoder)(encoder)


def _key(encoder: Frozen, part: Part) -> str:
    """What features are a function of, as a name."""
    digest, views = hashlib.sha256(), part.views
    for samples in torch.split(part.samples, 4096):
        digest.update(samples.contiguous().numpy().tobytes())
    seen = [views.counts, *views.decided_by, tuple(part.samples.shape)]
    parts = [VERSION, encoder.hash, *seen, digest.hexdigest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _fill(encoder: Frozen, part: Part, kept: Cache, batch: int, name: str) -> None:
    start = time.perf_counter()

    def compute(block: int) -> Tensor:
        generator = rng(0, block, SERVER, "encode")
        return encode_block(encoder, part.samples[kept.rows(block)], part.views, generator, batch)

    with progress(f"encoding {name} {part.called}", len(part.samples)) as done:
        made = kept.fill(compute, done)
    if made:
        spent, count = time.perf_counter() - start, made * kept.shape[1]
        print(
            f"note: {made:,} {name} {part.called} encoded, {kept.shape[1]} view(s) each, in {spent:.1f} s "
            f"({count / max(spent, 1e-9):,.0f} features/s); {in_words(kept.size)} in {kept.folder}",
            file=sys.stderr,
        )


def encode_block(
    encoder: Frozen, samples: Tensor, views: Views, generator: torch.Generator, batch: int
) -> Tensor:
    """Features (N, 1 + weak + strong, d): of the samples, their weak views, their strong views."""
    seen = [samples]
    seen += [views.draw_weak(samples, generator) for _ in range(views.weak)]
    seen += [views.draw_strong(samples, generator) for _ in range(views.strong)]
    return torch.stack([in_batches(encoder, view, batch) for view in seen], 1)


def in_batches(encoder: Frozen, samples: Tensor, batch: int) -> Tensor:
    """Features of many samples, so many at a time. Texts of a like length are encoded together, since those
    of a batch are padded to the longest.
    """
    if not is_texts(samples):
        return torch.cat([encoder(part) for part in torch.split(samples, batch)])
    order = lengths(samples).argsort(stable=True)
    features = torch.cat([encoder(part) for part in torch.split(samples[order], batch)])
    return features[order.argsort()]
