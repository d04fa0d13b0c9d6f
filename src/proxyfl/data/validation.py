"""Labelled images that nobody trains on: rounds and settings are chosen by them, so that test images only
report.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from proxyfl.core.errors import ConfigError
from proxyfl.core.rng import SERVER, numpy_rng
from proxyfl.data.dataset import Dataset
from proxyfl.data.labels import Indices, label_array
from proxyfl.data.partition import Partition
from proxyfl.data.ragged import Ragged


def hold_out(partition: Partition, data: Any, share: float, seed: int = 7) -> Partition:
    """Take a share of the labelled images of every class out of training: at least one, but never the last.

    ``data`` is the data set that was dealt, or its training labels. Each image stays with its client, in
    the partition's ``validation`` lists, or with the server, in ``server_validation``. A pure function of
    what it is given.

    >>> import proxyfl
    >>> from proxyfl.data.validation import hold_out
    >>> labels = [0, 1] * 50
    >>> split = hold_out(proxyfl.partition(labels, clients=4, per_class=20, scheme="iid"), labels, 0.1)
    >>> int(split.validation.sizes.sum()), int(split.labelled.sizes.sum())
    (4, 36)
    """
    labels = label_array(data.train.labels if isinstance(data, Dataset) else data, unknown=True)
    known = np.concatenate([partition.labelled.flat()[1], partition.server])
    kept = _drawn(np.unique(known), labels, share, seed)
    if not len(kept):
        raise ConfigError(
            f"data.validation = {share:g} finds no image to hold out: no class has two "
            "labelled images; label more, or set it to 0"
        )
    if len(partition.server):
        stay = ~np.isin(partition.server, kept)
        return replace(partition, server=partition.server[stay], server_validation=kept)
    labelled, unlabelled = (_without(part, kept) for part in (partition.labelled, partition.unlabelled))
    return replace(
        partition, labelled=labelled, unlabelled=unlabelled, validation=_only(partition.labelled, kept)
    )


def _drawn(images: Indices, labels: Indices, share: float, seed: int) -> Indices:
    """Some of each class, sorted."""
    generator = numpy_rng(seed, 0, SERVER, "validation")
    chosen = []
    for label in np.unique(labels[images]).tolist():
        mine = generator.permutation(images[labels[images] == label])
        count = min(max(1, round(share * len(mine))), len(mine) - 1)
        chosen.append(mine[:count])
    return np.sort(np.concatenate(chosen)) if chosen else images[:0]


def _without(lists: Ragged, images: Indices) -> Ragged:
    owner, held = lists.flat()
    stay = ~np.isin(held, images)
    return Ragged.from_sizes(held[stay], np.bincount(owner[stay], minlength=len(lists)))


def _only(lists: Ragged, images: Indices) -> Ragged:
    owner, held = lists.flat()
    taken = np.isin(held, images)
    return Ragged.from_sizes(held[taken], np.bincount(owner[taken], minlength=len(lists)))
