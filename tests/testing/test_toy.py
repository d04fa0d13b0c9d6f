"""Drawn data for tests of one's own methods."""

from __future__ import annotations

import doctest

import pytest
import torch

from proxyfl.testing import toy


def test_the_examples() -> None:
    assert doctest.testmod(toy) == doctest.TestResults(failed=0, attempted=4)


def test_a_class_is_a_bright_stripe_and_a_seed_gives_the_same_images() -> None:
    data = toy.toy_dataset(40, 12, classes=5, channels=3, size=8, seed=2)
    assert data.train.images.shape == (40, 3, 8, 8)
    assert (len(data.test), data.channels, len(data.classes)) == (12, 3, 5)
    assert torch.equal(data.train.images.float().mean((1, 3)).argmax(1), data.train.labels)
    assert torch.bincount(data.train.labels).tolist() == [8] * 5
    again = toy.toy_dataset(40, 12, classes=5, channels=3, size=8, seed=2)
    assert torch.equal(data.test.images, again.test.images)


def test_images_are_dealt_in_order() -> None:
    split = toy.toy_partition((2, 0), (1, 3))
    assert [split.labelled[k].tolist() for k in (0, 1)] == [[0, 1], []]
    assert [split.unlabelled[k].tolist() for k in (0, 1)] == [[2], [3, 4, 5]]
    with pytest.raises(ValueError, match="2 clients"):
        toy.toy_partition((1, 1), (1,))
