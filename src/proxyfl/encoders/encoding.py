"""A data set of images turned into one of features, once."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.text import in_words
from proxyfl.core.views import EncoderSettings
from proxyfl.data.augment import strong as strong_view
from proxyfl.data.augment import weak as weak_view
from proxyfl.data.dataset import Dataset, Encoded, Split
from proxyfl.data.files import data_root, progress
from proxyfl.data.numbers import statistics
from proxyfl.encoders.cache import Cache, require_room
from proxyfl.encoders.encoder import Encoder

VERSION = 1
"""Of what is computed; another one makes every cache anew."""
FOLDER = "features"


def encode(
    dataset: Dataset,
    encoder: Encoder | nn.Module,
    *,
    weak: int = 2,
    strong: int = 2,
    cache: str | Path | None = None,
    batch: int = 64,
) -> Dataset:
    """The data set that ``encoder`` makes of a data set of images: a vector for each, as any other vectors.

    Training images are encoded as they are and in ``weak`` and ``strong`` views, one of which is drawn
    whenever a method asks for a view; all others as they are. Features are kept in the folder ``cache`` (by
    default ``features`` in the data folder), computed once for an encoder, a data set and numbers of views.

    >>> import proxyfl, torch
    >>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    >>> data = proxyfl.encode(proxyfl.load_dataset("digits"), net)               # doctest: +SKIP
    >>> data.train.images.shape                                                  # doctest: +SKIP
    torch.Size([1300, 5, 16])
    """
    EncoderSettings(weak, strong)
    if dataset.is_vectors:
        raise DataError(f"'{dataset.name}' holds vectors; encoders take images")
    if batch < 1:
        raise ConfigError(f"batch = {batch} is too small; use 1 or more")
    found = encoder if isinstance(encoder, Encoder) else Encoder(encoder)
    root = data_root() / FOLDER if cache is None else Path(cache).expanduser()
    width = found(dataset.train.images[:1]).shape[1]
    splits = {"train": dataset.train, "test": dataset.test, "validation": dataset.validation}
    plans = {}
    for name, split in splits.items():
        if split is not None:
            views = (weak, strong) if name == "train" else (0, 0)
            key = _key(found, split, views, dataset.flip)
            plans[name] = (split, views, Cache(root / key, (len(split), 1 + sum(views), width)))
    require_room([plan[2] for plan in plans.values()], root)
    features = {}
    for name, (split, views, kept) in plans.items():
        _fill(found, split, views, dataset.flip, kept, batch, name)
        encoded = kept.open()
        features[name] = Split(encoded if name == "train" else encoded[:, 0], split.labels)
    train = features["train"]
    mean, std = statistics(train.images[:, 0].float().numpy())
    shape = (dataset.channels, dataset.image_size)
    return replace(
        dataset, train=train, test=features["test"], validation=features.get("validation"), mean=mean,
        std=std, features=(), encoded=Encoded(found.called, found.hash, *shape, weak),
    )  # fmt: skip


def _key(encoder: Encoder, split: Split, views: tuple[int, int], flip: bool) -> str:
    """What features are a function of, as a name."""
    digest = hashlib.sha256()
    for images in torch.split(split.images, 4096):
        digest.update(images.contiguous().numpy().tobytes())
    told = [VERSION, encoder.hash, views, flip and any(views), tuple(split.images.shape), digest.hexdigest()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _fill(
    encoder: Encoder, split: Split, views: tuple[int, int], flip: bool, kept: Cache, batch: int, name: str
) -> None:
    start = time.perf_counter()

    def compute(block: int) -> Tensor:
        return encode_block(
            encoder, split.images[kept.rows(block)], views, flip, rng(0, block, SERVER, "encode"), batch
        )

    with progress(f"encoding {name} images", len(split)) as done:
        made = kept.fill(compute, done)
    if made:
        spent, count = time.perf_counter() - start, made * kept.shape[1]
        print(
            f"note: {made:,} {name} images encoded, {kept.shape[1]} view(s) each, in {spent:.1f} s "
            f"({count / max(spent, 1e-9):,.0f} features/s); {in_words(kept.size)} in {kept.folder}",
            file=sys.stderr,
        )


def encode_block(
    encoder: Encoder,
    images: Tensor,
    views: tuple[int, int],
    flip: bool,
    generator: torch.Generator,
    batch: int,
) -> Tensor:
    """Features (N, 1 + weak + strong, d): of the images, their weak views, their strong views."""
    weak, strong = views
    seen = [images]
    seen += [weak_view(images, generator, flip=flip) for _ in range(weak)]
    seen += [strong_view(images, generator, flip=flip) for _ in range(strong)]
    encoded = [torch.cat([encoder(part) for part in torch.split(view, batch)]) for view in seen]
    return torch.stack(encoded, 1)
