"""AUROC from counts in bins against AUROC from the scores themselves."""

from __future__ import annotations

import pytest
import torch

from proxyfl.federation import measures
from proxyfl.federation.histograms import BINS, auroc, fit, score_histograms


def made(images=3000, classes=4, seed=0, sure=1.5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (images,), generator=generator)
    logits = torch.randn(images, classes, generator=generator)
    logits[torch.arange(images), labels] += sure
    return logits.softmax(1), labels


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("sure", [0.0, 1.5, 8.0])
def test_bins_lose_less_than_a_thousandth(classes, sure):
    probabilities, labels = made(classes=classes, sure=sure)
    exact = measures.auroc(probabilities, labels)
    assert auroc(score_histograms(probabilities, labels)) == pytest.approx(exact, abs=1e-3)


def test_counts_of_sites_add_up_to_those_of_all():
    probabilities, labels = made()
    parts = [score_histograms(probabilities[k::3], labels[k::3]) for k in range(3)]
    assert torch.equal(torch.stack(parts).sum(0), score_histograms(probabilities, labels).long())


def test_scores_of_nought_and_one_have_a_bin():
    probabilities = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    counts = score_histograms(probabilities, torch.tensor([1, 0, 0]))
    assert counts[1, :, 0].tolist() == [1, 0]
    assert counts[1, :, BINS - 1].tolist() == [1, 1]
    assert auroc(counts) == measures.auroc(probabilities, torch.tensor([1, 0, 0])) == 0.75


def test_one_class_alone_has_no_curve():
    probabilities, labels = made(classes=3)
    assert auroc(score_histograms(probabilities, torch.zeros_like(labels))) is None


def test_histograms_fit_the_table_of_counts():
    probabilities, labels = made(images=50)
    counts = score_histograms(probabilities, labels)
    cells = labels * 4 + probabilities.argmax(1)
    confusion = torch.bincount(cells, minlength=16).reshape(4, 4)
    assert fit(counts, confusion)
    more = counts.clone()
    more[0, 1, 0] += 1
    assert not fit(more, confusion)
    negative = counts.clone()
    negative[0, 1, 0] -= 5
    negative[0, 1, 1] += 5
    assert not fit(negative, confusion)
