"""How good predictions are beside their accuracy: macro-F1, balanced accuracy, AUROC, calibration, top-5.

Definitions are scikit-learn's. What cannot be computed from the test images at hand is left out: AUROC where
no class has both images and others, top-5 below 20 classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxyfl.core.records import MEASURES

BINS = 15
"""Of equal width, over which the calibration error is summed."""

TOP, TOP_FROM = 5, 20
"""Top-5 says something from this many classes on."""


def of_confusion(confusion: Tensor) -> dict[str, float]:
    """What counts of (true class, predicted class) alone say. Classes that are neither true nor predicted
    anywhere do not count, as in scikit-learn.
    """
    right, true, predicted = (
        part.double() for part in (confusion.diagonal(), confusion.sum(1), confusion.sum(0))
    )
    if not int(true.sum()):
        return {}
    there, tested = true + predicted > 0, true > 0
    f1 = 2 * right[there] / (true + predicted)[there]
    return {
        "macro_f1": float(f1.mean()),
        "balanced_accuracy": float((right[tested] / true[tested]).mean()),
    }


def precision(confusion: Tensor) -> list[float | None]:
    """Share of right ones among the images given to each class; None for a class that none was given to."""
    given, right = confusion.sum(0), confusion.diagonal()
    return [int(r) / int(n) if n else None for r, n in zip(right, given, strict=True)]


def of_scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """What needs the probabilities (images, classes) beside the true labels."""
    found = {"ece": calibration_error(probabilities, labels)}
    area = auroc(probabilities, labels)
    if area is not None:
        found["auroc"] = area
    if probabilities.shape[1] >= TOP_FROM:
        found["top5"] = float(among_top(probabilities, labels).double().mean())
    return {name: found[name] for name in MEASURES if name in found}


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error: how far confidence and accuracy are apart in each bin, by its images."""
    confidence, right, place = by_confidence(probabilities, labels)
    apart = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, right - confidence)
    return float(apart.abs().sum() / len(labels))


def by_confidence(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every image the confidence of its prediction, whether that is right (1 or 0), and its bin."""
    confidence, guess = probabilities.double().max(1)
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    return confidence, (guess == labels).double(), place


def among_top(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Of every image whether its class is among the likeliest ones."""
    return (probabilities.topk(TOP, dim=1).indices == labels[:, None]).any(1)


def auroc(probabilities: Tensor, labels: Tensor) -> float | None:
    """The mean over classes of the area under the curve of one class against all others."""
    counts = torch.bincount(labels, minlength=probabilities.shape[1]).double()
    others = len(labels) - counts
    known = (counts > 0) & (others > 0)
    if not bool(known.any()):
        return None
    if len(counts) == 2:  # both say the same
        known[0] = False
    columns = probabilities.T.contiguous()
    areas = [
        (float(_ranks(columns[k])[labels == k].sum()) - float(counts[k]) * (float(counts[k]) + 1) / 2)
        / (float(counts[k]) * float(others[k]))
        for k in known.nonzero().flatten().tolist()
    ]
    return sum(areas) / len(areas)


def _ranks(values: Tensor) -> Tensor:
    """From 1, equal values at the mean of their places."""
    ordered = values.sort().values
    first, behind = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (first + behind + 1).double() / 2
