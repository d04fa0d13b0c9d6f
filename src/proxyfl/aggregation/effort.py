"""The most that a client can have done in a round, from the settings and the images it registered.

With n images, B labelled and mu B unlabelled ones in a batch, and E local epochs::

    steps of an epoch   S = n / B, or n / (mu B) where an epoch is one pass; at least 1; or what a method says
    visits of an epoch  S (B + min(mu B, n)): labelled images are drawn with replacement, so batches are full
"""

from __future__ import annotations

from dataclasses import dataclass

from proxyfl.core.config import TrainSettings
from proxyfl.methods.base import Method


@dataclass(frozen=True)
class Effort:
    """``images`` that a client registered, ``steps`` and ``epochs`` of its round, ``visits`` to images in a
    local epoch, and how many ``times`` it was to train.
    """

    images: int
    steps: int
    epochs: int
    visits: int
    times: int = 1


def most_effort(train: TrainSettings, method: Method, images: int, times: int = 1) -> Effort:
    """For a client with this many images, however many of them are labelled, that trains so many times."""
    pool_batch = train.batch * train.mu
    per_step = train.batch if train.epoch == "release" or method.walks_labelled else pool_batch
    proposed = max(1, images // per_step)
    steps = max(proposed, method.steps_per_epoch(images, proposed, train.batch))
    visits = steps * (train.batch + min(pool_batch, images))
    epochs = times * train.epochs
    return Effort(images, epochs * steps, epochs, visits, times)
