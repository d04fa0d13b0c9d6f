"""How the released program normalises: training images of any data set by CIFAR-10's figures."""

from __future__ import annotations

from proxyfl.data.dataset import Dataset
from proxyfl.data.stream import ViewSettings

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
TEST_STD = {"cifar10": (0.2023, 0.1994, 0.2010)}
"""Where it normalises test images by something else than the data set's own figures."""


def release_views(dataset: Dataset, flip: bool) -> tuple[ViewSettings, ViewSettings]:
    """Of training and of test images."""
    test_std = TEST_STD.get(dataset.name, dataset.std)
    return ViewSettings(flip, MEAN, STD), ViewSettings(flip, dataset.mean, test_std)
