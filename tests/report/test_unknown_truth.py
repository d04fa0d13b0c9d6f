"""Where nobody knows the classes of unlabelled images, a page says so instead of drawing a line."""

from __future__ import annotations

import numpy as np

from proxyfl import Run
from proxyfl.report.html.gather import gather
from proxyfl.report.html.pieces import Labels


class Partly(Labels):
    """The true classes, of which some are unknown."""

    def of(self, run: Run) -> tuple[np.ndarray, tuple[str, ...]]:
        labels, names = super().of(run)
        hidden = np.asarray(labels).copy()
        hidden[run.partition.unlabelled.flat()[1]] = -1
        return hidden, names


def test_classes_that_are_known_are_drawn_and_the_others_named(runs):
    run = runs["proxyfl"][0]
    page = gather([run], labels=Partly())["runs"][0]
    held = page["partition"]
    assert sum(map(sum, held["labelled"])) == run.partition.labelled.sizes.sum()
    assert sum(map(sum, held["unlabelled"])) == 0
    assert held["shares"] is None, "a prior is not held against shares that nobody knows"
    assert "unlabelled images are unknown" in page["notes"]["partition"]


def test_no_accuracy_of_pseudo_labels(tmp_path):
    """From the data on: with labels of -1 pseudo-labels are counted only."""
    import proxyfl

    data = proxyfl.load_dataset("digits")
    labels = data.train.labels.clone()[:200]
    labels[100:] = -1
    mine = proxyfl.Dataset.of(
        data.train.images[:200], labels, test=(data.test.images[:50], data.test.labels[:50]), classes=10
    )
    split = proxyfl.partition(mine, clients=2, per_class=5, scheme="iid")
    federation = proxyfl.Federation(
        mine, split, width=1, method="fixmatch-lpl", rounds=1, per_round=2, workers=0,
        train=proxyfl.Train(epochs=1, batch=16),
    )  # fmt: skip
    federation.record(tmp_path / "run").run()
    page = gather([Run(tmp_path / "run")])["runs"][0]
    assert "pseudo.selected_share" in page["curves"]
    assert "pseudo.accuracy" not in page["curves"]


def test_vectors_are_called_vectors_and_counted_where_nobody_knows_their_class(tmp_path):
    import torch

    import proxyfl

    vectors, labels = torch.rand(60, 5), torch.arange(60) % 3
    labels[30:] = -1
    mine = proxyfl.Dataset.of(vectors, labels, test=(vectors[:30], labels[:30]))
    split = proxyfl.partition(mine, clients=2, per_class=5, scheme="iid")
    federation = proxyfl.Federation(
        mine, split, network="mlp", method="fixmatch-lpl", rounds=1, per_round=2, workers=0,
        train=proxyfl.Train(epochs=1, batch=16),
    )  # fmt: skip
    federation.record(tmp_path / "run").run()

    class Known(Labels):
        def of(self, run: Run) -> tuple[np.ndarray, tuple[str, ...]]:
            return labels.numpy(), mine.classes

    page = gather([Run(tmp_path / "run")], labels=Known())["runs"][0]
    assert page["called"] == "vectors"
    assert page["notes"]["partition"].startswith("the classes of 30 unlabelled vectors are unknown")
    assert page["partition"]["totals"] == [15, 45]
