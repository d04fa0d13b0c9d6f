"""The real files, where PROXYFL_DATA names a folder that has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from proxyfl.data.files import judge
from proxyfl.data.sources import SOURCES, load
from proxyfl.data.sources.base import channel_statistics

ROOT = os.environ.get("PROXYFL_DATA", "")


@pytest.fixture(params=["cifar10", "cifar100", "svhn", "cinic10", "fashion-mnist", "mnist"])
def name(request):
    if not ROOT:
        pytest.skip("PROXYFL_DATA is not set")
    if not SOURCES[request.param].locate(Path(ROOT)).present:
        pytest.skip(f"{request.param} is not in PROXYFL_DATA")
    return request.param


def test_reads_and_agrees_with_what_is_known(name):
    source = SOURCES[name]
    found = source.locate(Path(ROOT))
    dataset = load(name, ROOT)
    assert dataset.partial == source.shortfall(len(dataset.train), len(dataset.test))
    if found.counts is not None:
        assert found.counts == (len(dataset.train), len(dataset.test))
    assert torch.bincount(dataset.train.labels, minlength=len(dataset.classes)).min() > 0
    mean, std = channel_statistics(dataset.train.images.numpy())
    assert dataset.mean == pytest.approx(mean, abs=0.02)
    assert dataset.std == pytest.approx(std, abs=0.02)


def test_complete_sets_have_known_checksums_and_counts(name):
    dataset = load(name, ROOT)
    if dataset.partial:
        pytest.skip(f"partial: {dataset.partial}")
    for file in SOURCES[name].locate(Path(ROOT)).files:
        assert judge(file, SOURCES[name].checksums.get(file.name, ())).word != "differs"
    if name == "cifar10":
        assert torch.bincount(dataset.train.labels).tolist() == [5000] * 10
        assert dataset.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
