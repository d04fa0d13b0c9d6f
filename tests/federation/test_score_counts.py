"""AUROC, calibration error and top-5 from counts in bins against those from the scores themselves."""

from __future__ import annotations

import pytest
import torch

from proxyfl.federation import measures
from proxyfl.federation.score_counts import BINS, auroc, fit, measured, score_counts


def histograms(probabilities, labels):
    return score_counts(probabilities, labels)["histograms"]


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
    assert auroc(histograms(probabilities, labels)) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize("classes", [4, 20])
def test_counts_of_sites_add_up_to_the_measures_of_all(classes):
    probabilities, labels = made(classes=classes)
    parts = [score_counts(probabilities[k::3], labels[k::3]) for k in range(3)]
    whole = {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
    exact, found = measures.of_scores(probabilities, labels), measured(whole, len(labels))
    assert found.keys() == exact.keys()
    assert ("top5" in found) == (classes == 20)
    assert found.pop("auroc") == pytest.approx(exact.pop("auroc"), abs=1e-3)
    assert found == pytest.approx(exact, abs=1e-12)  # these lose nothing


def test_scores_of_nought_and_one_have_a_bin():
    probabilities = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    counts = histograms(probabilities, torch.tensor([1, 0, 0]))
    assert counts[1, :, 0].tolist() == [1, 0]
    assert counts[1, :, BINS - 1].tolist() == [1, 1]
    assert auroc(counts) == measures.auroc(probabilities, torch.tensor([1, 0, 0])) == 0.75


def test_one_class_alone_has_no_curve():
    probabilities, labels = made(classes=3)
    assert auroc(histograms(probabilities, torch.zeros_like(labels))) is None


@pytest.mark.parametrize(
    ("name", "place", "change"),
    [
        ("histograms", (0, 1, 0), 1),
        ("calibration", (0, 0), 1),  # an image more
        ("calibration", (1, 14), 50),  # more right ones than images
        ("calibration", (2, 3), 20.0),  # confidences beyond their bin
        ("calibration", (2, 3), float("nan")),
        ("top5", (0,), 50),
        ("top5", (0,), -50),
    ],
)
def test_counts_of_scores_fit_the_table_of_classes(name, place, change):
    probabilities, labels = made(images=50, classes=20)
    counts = score_counts(probabilities, labels)
    cells = labels * 20 + probabilities.argmax(1)
    confusion = torch.bincount(cells, minlength=400).reshape(20, 20)
    assert fit(counts, confusion)
    counts[name][place] += change
    assert not fit(counts, confusion)


def test_no_count_is_negative():
    probabilities, labels = made(images=50)
    counts = histograms(probabilities, labels)
    counts[0, 1, 0] -= 5
    counts[0, 1, 1] += 5
    cells = labels * 4 + probabilities.argmax(1)
    assert not fit({"histograms": counts}, torch.bincount(cells, minlength=16).reshape(4, 4))
