"""Data on one machine, dealt to clients: what a federation is simulated with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from proxyfl.core.config import Config
from proxyfl.core.errors import DataError
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.views import VectorSettings
from proxyfl.data import sources
from proxyfl.data.dataset import Dataset, Split
from proxyfl.data.files import data_root
from proxyfl.data.holdings import Holdings
from proxyfl.data.labels import stratified
from proxyfl.data.partition import Partition, make_partition
from proxyfl.data.scenarios import who_has_labels
from proxyfl.data.stream import ViewSettings
from proxyfl.encoders import encode, load_encoder
from proxyfl.encoders.encoding import FOLDER
from proxyfl.federation.sampling import Population
from proxyfl.runs.views import Pair, flips, views_of

MOST_NAMED = 20
"""Classes or clients named in a line."""
MEANINGFUL = 2
"""Training images of a class below which nothing can be learnt."""


@dataclass(frozen=True)
class Simulation:
    """Data, partition and normalisation of one experiment; ``per_class`` images of each class are labelled
    (0: as the partition says).
    """

    dataset: Dataset
    partition: Partition
    per_class: int
    train_views: ViewSettings
    test_views: ViewSettings

    @property
    def views(self) -> Pair:
        return self.train_views, self.test_views

    @property
    def population(self) -> Population:
        return Population(self.partition.labelled.sizes, self.partition.unlabelled.sizes)

    @property
    def validation(self) -> Split | None:
        """Labelled images that nobody trains on, each once: those held out of the training images, or the
        data set's own.
        """
        held, at_server = self.partition.validation, self.partition.server_validation
        if held is None and not len(at_server):
            return self.dataset.validation
        images = at_server if held is None else np.unique(held.flat()[1])
        return self.dataset.train.take(torch.from_numpy(images))

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


def simulate(dataset: Dataset, partition: Partition, views: Pair | None = None) -> Simulation:
    """``views`` are those of training and of test images; without them the data set's own."""
    require_same_data(dataset, partition)
    return Simulation(dataset, partition, 0, *(views or views_of(dataset, VectorSettings())))


def require_same_data(dataset: Dataset, partition: Partition) -> None:
    """Refuse a partition of other data: every index must name an image, every labelled one have a label."""
    held = partition.validation
    parts = {"labelled": np.concatenate([partition.all_labelled, partition.server_validation])}
    parts["unlabelled"] = partition.unlabelled.values
    for name, values in (parts | ({"validation": held.values} if held else {})).items():
        if len(values) and int(values.max()) >= len(dataset.train):
            raise DataError(
                f"the partition uses {name} image {int(values.max())}, but '{dataset.name}' has "
                f"{len(dataset.train)} training images; create it from the same data"
            )
    labelled = [parts["labelled"], *([held.values] if held is not None else [])]
    if any(bool((dataset.train.labels[values] < 0).any()) for values in labelled):
        raise DataError(
            "the partition lists images as labelled whose label is -1; create it from the same data"
        )
    if not partition.sizes.any():
        raise DataError(f"'{dataset.name}' has no training {dataset.train.called} to partition")


def load_dataset(config: Config, root: Path | None = None) -> Dataset:
    """The data set as a network is given it: where the settings name a frozen encoder, its features."""
    dataset = load_samples(config, root)
    return _encoded(config, dataset, root) if config.model.encoder else dataset


def load_samples(config: Config, root: Path | None = None) -> Dataset:
    """The data set at the size and with the images the settings ask for, before any encoder."""
    size = config.data.image_size or None
    dataset = sources.load(config.data.name, root, image_size=size, keys=config.data.keys)
    kept = config.data.subset
    count = round(kept * len(dataset.train)) if kept <= 1 else int(kept)
    return dataset.subset(count, rng(config.labels.seed, 0, SERVER, "subset"))


def _encoded(config: Config, dataset: Dataset, root: Path | None) -> Dataset:
    """Its features, by the encoder that the settings name."""
    encoder = load_encoder(config.model.encoder, config.model.encoder_hash)
    cache, views = data_root(root) / FOLDER, config.encoder
    seen = replace(dataset, flip=flips(dataset, config.data.flip))
    return encode(seen, encoder, weak=views.weak, strong=views.strong, texts=config.texts, cache=cache)


def labels_per_class(config: Config, dataset: Dataset) -> int | list[int]:
    """How many images of each class keep their label, scaled to the share of the data at hand."""
    labels, classes = config.labels, len(dataset.classes)
    if labels.per_class:
        return labels.per_class
    if labels.rule == "stratified":
        return stratified(dataset.train.labels, labels.ratio, classes)
    if labels.rule == "release" and labels.ten_percent:
        share = len(dataset.train) / dataset.full_size
        return max(1, round(labels.ten_percent * labels.ratio / 0.1 * share))
    return max(1, round(labels.ratio * len(dataset.train) / classes))


def prepare(config: Config, root: Path | None = None, partition: Partition | None = None) -> Simulation:
    """Load and cut the data as a config says; a resumed run brings the partition it began with, and compares
    the data first.
    """
    dataset = load_dataset(config, root)
    per_class = labels_per_class(config, dataset)
    if partition is None:
        partition = make_partition(
            dataset,
            clients=config.partition.clients,
            per_class=per_class,
            scheme=config.partition.scheme,
            alpha=config.partition.alpha,
            alpha_labelled=config.partition.alpha_labelled,
            alpha_unlabelled=config.partition.alpha_unlabelled,
            split_seed=config.labels.seed,
            partition_seed=config.partition.seed,
            where=config.labels.where,
            labelled_clients=config.labels.clients,
            validation=config.data.validation,
        )
        require_same_data(dataset, partition)
    views = views_of(dataset, config.vectors, config.data.norm, config.data.flip)
    return Simulation(dataset, partition, per_class if isinstance(per_class, int) else 0, *views)


def remarks(config: Config, simulation: Simulation) -> list[str]:
    """Lines to read before the first round: what own data comes to, and why a run may mean nothing."""
    dataset, partition = simulation.dataset, simulation.partition
    labels = dataset.train.labels[torch.from_numpy(partition.all_labelled)]
    counts = torch.bincount(labels, minlength=len(dataset.classes)).tolist()
    lines = []
    if config.labels.rule == "stratified":
        shown = [f"{name} {count:,}" for name, count in zip(dataset.classes, counts, strict=True)]
        more = f" and {len(shown) - MOST_NAMED:,} more classes" if len(shown) > MOST_NAMED else ""
        unlabelled = f"{len(partition.unlabelled.values):,} {dataset.called} are unlabelled"
        lines.append(f"note: labelled {dataset.called}: {', '.join(shown[:MOST_NAMED])}{more}; {unlabelled}")
    if who := labels_in_words(simulation):
        lines.append(f"note: {who}")
    return lines + [f"warning: {line}" for line in doubts(dataset, partition)]


def labels_in_words(simulation: Simulation) -> str:
    """Who has labels, where not every client has some, in a sentence."""
    dealt, what = simulation.partition, simulation.dataset.called
    return who_has_labels(dealt.where, dealt.server, dealt.labelled, what)


def doubts(dataset: Dataset, partition: Partition) -> list[str]:
    """Why a run on this data cannot mean much, a line each."""
    lines, what = [], dataset.called
    if len(dataset.classes) == 1:
        lines.append(f"there is only one class, '{dataset.classes[0]}': every accuracy is 100 %")
    found = torch.bincount(dataset.train.labels.clamp(min=-1) + 1, minlength=len(dataset.classes) + 1)[1:]
    without = [name for name, images in zip(dataset.classes, found.tolist(), strict=True) if not images]
    if without:
        more = f" and {len(without) - MOST_NAMED:,} more" if len(without) > MOST_NAMED else ""
        named = ", ".join(f"'{name}'" for name in without[:MOST_NAMED])
        lines.append(f"no labelled training {what} of class {named}{more}: this class cannot be learnt")
    count = len(dataset.train)
    if count < partition.clients:
        lines.append(f"{count:,} training {what} are fewer than {partition.clients:,} clients")
    elif count < MEANINGFUL * len(dataset.classes):
        lines.append(f"{count:,} training {what} of {len(dataset.classes)} classes are too few to learn from")
    empty = (partition.sizes == 0).nonzero()[0].tolist()
    if empty:
        natural = len(dataset.clients) == partition.clients
        names = [dataset.clients[place] if natural else str(place) for place in empty[:MOST_NAMED]]
        more = f" and {len(empty) - MOST_NAMED:,} more" if len(empty) > MOST_NAMED else ""
        lines.append(f"{len(empty):,} clients have no {what}: {', '.join(names)}{more}")
    return lines
