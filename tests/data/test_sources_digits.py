from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.core.errors import ProxyFLError
from proxyfl.data.sources import SOURCES, load
from proxyfl.data.sources.base import channel_statistics
from proxyfl.data.sources.digits import shares


@pytest.fixture(scope="module")
def digits():
    return load("digits", "nowhere")


def test_sizes_and_kind(digits):
    assert digits.train.images.shape == (1300, 1, 8, 8)
    assert digits.test.images.shape == (497, 1, 8, 8)
    assert digits.train.images.dtype == torch.uint8
    assert digits.classes == tuple("0123456789")
    assert not digits.flip
    assert digits.full_size == 1300
    assert digits.partial == ""


def test_grey_levels_are_the_seventeen_of_the_original_scaled_to_bytes(digits):
    levels = digits.train.images.unique().tolist()
    assert levels == [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]


def test_the_test_split_is_spread_over_the_classes_and_never_changes(digits):
    assert torch.bincount(digits.test.labels).tolist() == [49, 50, 49, 51, 50, 50, 50, 50, 48, 50]
    assert hashlib.sha256(digits.test.images.numpy().tobytes()).hexdigest()[:16] == "5fbde1af07c379bc"


def test_train_and_test_together_are_the_whole_set_in_its_order(digits):
    from sklearn.datasets import load_digits

    together = torch.cat([digits.train.images, digits.test.images]).flatten(1)
    original = np.rint(load_digits().images * 255 / 16).astype(np.uint8).reshape(1797, -1)
    assert sorted(map(bytes, together.numpy())) == sorted(map(bytes, original))
    place = {bytes(row): number for number, row in enumerate(original)}
    order = [place[bytes(row)] for row in digits.train.images.flatten(1).numpy()]
    assert sum(later < earlier for earlier, later in itertools.pairwise(order)) <= 4  # equal images


def test_mean_and_std_are_those_of_the_training_split(digits):
    mean, std = channel_statistics(digits.train.images.numpy())
    assert digits.mean == pytest.approx(mean, abs=5e-5)
    assert digits.std == pytest.approx(std, abs=5e-5)


def test_shares_follow_the_largest_remainders():
    assert shares(np.array([5, 3, 2]), 5) == [3, 1, 1]
    assert shares(np.array([1, 1, 1]), 2) == [1, 1, 0]


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ProxyFLError, match=r"scikit-learn.*proxyfl\[data\]"):
        load("digits", "nowhere")


def test_without_scikit_learn_locate_says_so(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = SOURCES["digits"].locate(Path())
    assert not found.present
    assert "scikit-learn" in found.note
