"""Drawn images and who holds them: federations that train in a fraction of a second."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch

from proxyfl.data.dataset import Dataset, Split
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged


def toy_dataset(
    train: int = 128,
    test: int = 40,
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 8,
    seed: int = 0,
) -> Dataset:
    """Noise with one bright stripe per class: easy to learn, and the same for the same arguments.

    >>> data = toy_dataset(train=20, classes=4)
    >>> data.train.images.shape, sorted(set(data.train.labels.tolist()))
    (torch.Size([20, 1, 8, 8]), [0, 1, 2, 3])
    """
    seen, held = (_drawn(count, classes, channels, size, seed + k) for k, count in enumerate((train, test)))
    mean, std = (0.5,) * channels, (0.25,) * channels
    return Dataset("drawn", seen, held, tuple(map(str, range(classes))), mean, std, False, train)


def toy_partition(
    labelled: Sequence[int] = (6, 6, 6, 6), unlabelled: Sequence[int] = (26, 26, 26, 26)
) -> Partition:
    """Images 0, 1, 2, … dealt in order: first every client's labelled ones, then the unlabelled ones.

    >>> split = toy_partition(labelled=(1, 2), unlabelled=(3, 0))
    >>> split.labelled[1].tolist(), split.unlabelled[0].tolist()
    ([1, 2], [3, 4, 5])
    """
    if len(labelled) != len(unlabelled):
        raise ValueError(f"{len(labelled)} clients with labelled images, {len(unlabelled)} with unlabelled")
    bounds = np.cumsum([0, *labelled, *unlabelled])
    lists = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
    return Partition(_ragged(lists[: len(labelled)]), _ragged(lists[len(labelled) :]))


def _ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    values = np.concatenate([np.asarray(part, dtype=np.int64) for part in lists])
    return Ragged.from_sizes(values, np.array([len(part) for part in lists], dtype=np.int64))


def _drawn(count: int, classes: int, channels: int, size: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(count, generator=generator) % classes
    images = torch.randint(0, 120, (count, channels, size, size), generator=generator)
    images[torch.arange(count), :, labels % size] += 100
    return Split(images.to(torch.uint8), labels)
