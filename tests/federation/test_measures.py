"""Measures beside accuracy: scikit-learn's definitions, calibration by hand."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
import torch

from extras import extra
from proxyfl.federation import measures

theirs = extra("sklearn.metrics")


def drawn(images: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and probabilities that know something of them; some are equal."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (images,), generator=generator)
    logits = torch.randn(images, classes, generator=generator).round(decimals=1)
    logits[torch.arange(images), labels] += 1
    return labels, logits.softmax(1)


def confusion_of(labels: torch.Tensor, guess: torch.Tensor, classes: int) -> torch.Tensor:
    return torch.bincount(labels * classes + guess, minlength=classes**2).reshape(classes, classes)


@pytest.mark.parametrize("classes", [2, 5, 25])
def test_they_are_those_of_scikit_learn(classes):
    labels, probabilities = drawn(400, classes)
    guess = probabilities.argmax(1)
    confusion = confusion_of(labels, guess, classes)
    found = measures.of_confusion(confusion) | measures.of_scores(probabilities, labels)
    scores = probabilities.numpy()
    area = theirs.roc_auc_score(
        labels, scores[:, 1] if classes == 2 else scores, multi_class="ovr", average="macro"
    )
    assert found["macro_f1"] == pytest.approx(theirs.f1_score(labels, guess, average="macro"))
    assert found["balanced_accuracy"] == pytest.approx(theirs.balanced_accuracy_score(labels, guess))
    assert found["auroc"] == pytest.approx(area)
    assert measures.precision(confusion) == pytest.approx(
        list(theirs.precision_score(labels, guess, average=None, labels=range(classes)))
    )
    assert ("top5" in found) == (classes >= 20)
    if classes >= 20:
        assert found["top5"] == pytest.approx(theirs.top_k_accuracy_score(labels, scores, k=5), abs=0.02)


def test_classes_that_are_missing():
    """3 of 5 classes are true, one is predicted only, one is nowhere."""
    labels, guess = torch.tensor([0, 0, 1, 1, 2]), torch.tensor([0, 3, 1, 1, 1])
    confusion = confusion_of(labels, guess, 5)
    found = measures.of_confusion(confusion)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["macro_f1"] == pytest.approx(
            theirs.f1_score(labels, guess, average="macro", zero_division=0)
        )
        assert found["balanced_accuracy"] == pytest.approx(theirs.balanced_accuracy_score(labels, guess))
    assert measures.precision(confusion) == [1.0, 2 / 3, None, 0.0, None]
    one = torch.zeros(3, dtype=torch.int64)
    assert measures.auroc(torch.rand(3, 4), one) is None
    assert "auroc" not in measures.of_scores(torch.full((3, 4), 0.25), one)
    assert measures.of_confusion(torch.zeros(2, 2, dtype=torch.int64)) == {}


def test_calibration_error_by_hand():
    """Two images sure by 0.9, one of them right; two sure by 0.6, both right: (0.8 + 0.8) / 4."""
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.4, 0.6]])
    assert measures.calibration_error(probabilities, torch.tensor([0, 1, 0, 1])) == pytest.approx(0.4)
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert measures.calibration_error(sure, torch.tensor([0, 1])) == 0.0
    assert measures.calibration_error(sure, torch.tensor([1, 0])) == 1.0
    # 1/15 is the end of the first bin, beyond it begins the second
    edges = torch.zeros(2, 15, dtype=torch.float64)
    edges[:, 0] = torch.tensor([1 / 15, 1 / 15 + 1e-3], dtype=torch.float64)
    assert measures.calibration_error(edges, torch.tensor([0, 1])) == pytest.approx(
        (1 - 1 / 15 + 1 / 15 + 1e-3) / 2
    )


def test_they_cost_little():
    labels, probabilities = drawn(10_000, 10)
    started = time.process_time()
    measures.of_scores(probabilities, labels)
    assert time.process_time() - started < 0.5


def test_numpy_agrees_on_ranks():
    values = torch.tensor([3.0, 1.0, 3.0, 2.0])
    assert np.array_equal(measures._ranks(values).numpy(), [3.5, 1.0, 3.5, 2.0])
