"""A federation on one machine: the data set cut into clients, as the settings say."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.config import Config
from proxyfl.core.errors import DataError
from proxyfl.core.rng import SERVER, rng
from proxyfl.data import sources
from proxyfl.data.dataset import Dataset
from proxyfl.data.holdings import Holdings
from proxyfl.data.partition import Partition, federate
from proxyfl.data.stream import ViewSettings
from proxyfl.federation.sampling import Population

RELEASE_MEAN, RELEASE_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
RELEASE_TEST_STD_CIFAR10 = (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Simulation:
    """Data, partition and normalisation of one experiment."""

    dataset: Dataset
    partition: Partition
    per_class: int
    train_views: ViewSettings
    test_views: ViewSettings

    @property
    def population(self) -> Population:
        return Population(self.partition.labelled.sizes, self.partition.unlabelled.sizes)

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.dataset.train.images, self.dataset.train.labels, self.partition)

    def fingerprint(self) -> str:
        """A hash of labels, shapes and a sample of the images: is this the data that the run began with?"""
        digest = hashlib.sha256()
        for split in (self.dataset.train, self.dataset.test):
            digest.update(str(tuple(split.images.shape)).encode())
            digest.update(split.labels.numpy().tobytes())
            stride = max(1, len(split) // 256)
            digest.update(split.images[::stride].contiguous().numpy().tobytes())
        return digest.hexdigest()


def load_dataset(config: Config, root: Path | None = None) -> Dataset:
    """The data set at the size and with the images the settings ask for."""
    dataset = sources.load(config.data.name, root, image_size=config.data.image_size or None)
    kept = config.data.subset
    count = round(kept * len(dataset.train)) if kept <= 1 else int(kept)
    return dataset.subset(count, rng(config.labels.seed, 0, SERVER, "subset"))


def labels_per_class(config: Config, dataset: Dataset) -> int:
    """How many images of each class keep their label, scaled to the share of the data at hand."""
    labels, classes = config.labels, len(dataset.classes)
    if labels.per_class:
        return labels.per_class
    if labels.rule == "release" and labels.ten_percent:
        share = len(dataset.train) / dataset.full_size
        return max(1, round(labels.ten_percent * labels.ratio / 0.1 * share))
    return max(1, round(labels.ratio * len(dataset.train) / classes))


def prepare(config: Config, root: Path | None = None, partition: Partition | None = None) -> Simulation:
    """Load and cut the data; a resumed run brings the partition it began with."""
    dataset = load_dataset(config, root)
    per_class = labels_per_class(config, dataset)
    if partition is None:
        partition = federate(
            dataset.train.labels,
            clients=config.partition.clients,
            per_class=per_class,
            scheme=config.partition.scheme,
            alpha=config.partition.alpha,
            split_seed=config.labels.seed,
            partition_seed=config.partition.seed,
        )
    if not partition.sizes.any():
        raise DataError(f"'{config.data.name}' has no training images to share out")
    train, test = _views(config, dataset)
    return Simulation(dataset, partition, per_class, train, test)


def _views(config: Config, dataset: Dataset) -> tuple[ViewSettings, ViewSettings]:
    flip = dataset.flip if config.data.flip == "own" else config.data.flip == "always"
    own = ViewSettings(flip, dataset.mean, dataset.std)
    if config.data.norm == "own" or dataset.channels != 3:
        return own, own
    test_std = RELEASE_TEST_STD_CIFAR10 if config.data.name == "cifar10" else dataset.std
    train = ViewSettings(flip, RELEASE_MEAN, RELEASE_STD)
    return train, ViewSettings(flip, dataset.mean, test_std)
