"""AUROC, calibration error and top-5 accuracy from counts: what a site may send where single scores stay
with it. Counts add up over sites.

``histograms``: of every class k the log-odds of p_k are counted in bins of equal width, apart for images of
the class and of others. Two scores in one bin are held to be equal, so the area is off by at most half the
share of pairs that meet in a bin. ``calibration``: by bins of confidence the images, those recognised and the
sum of confidences, from which the error follows exactly. ``top5``: images whose class is among the five
likeliest.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from proxyfl.core.config import Config
from proxyfl.core.state import Tensors
from proxyfl.federation import measures

LIMIT = 12.0
"""Log-odds beyond it, probabilities of less than one in 160,000, are in the outermost bins."""

BINS = 240
OTHERS, OWN = 0, 1
"""Which images a row counts: those of other classes, and those of the class."""

HISTOGRAMS, CALIBRATION, TOP5 = "histograms", "calibration", "top5"


def counts_scores(config: Config) -> bool:
    """Whether an experiment asks sites for counts of scores; under differential privacy none does."""
    return config.keep.metrics == "all" and not config.privacy.is_on


def blank(classes: int) -> Tensors:
    """Counts of no image: what there is by name, with type and shape."""
    found = {
        HISTOGRAMS: torch.zeros(classes, 2, BINS, dtype=torch.int32),
        CALIBRATION: torch.zeros(3, measures.BINS, dtype=torch.float64),
    }
    if classes >= measures.TOP_FROM:
        found[TOP5] = torch.zeros(1, dtype=torch.int64)
    return found


def score_counts(probabilities: Tensor, labels: Tensor) -> Tensors:
    """Of the probabilities (images, classes)."""
    found = blank(probabilities.shape[1])
    found[HISTOGRAMS] = _histograms(probabilities, labels)
    confidence, right, place = measures.by_confidence(probabilities, labels)
    found[CALIBRATION].index_add_(1, place, torch.stack([torch.ones_like(right), right, confidence]))
    if TOP5 in found:
        found[TOP5] += measures.among_top(probabilities, labels).sum()
    return found


def _histograms(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Counts (class, others or own, bin)."""
    classes = probabilities.shape[1]
    odds = torch.logit(probabilities.double()).clamp(-LIMIT, LIMIT)
    place = ((odds + LIMIT) * (BINS / (2 * LIMIT))).long().clamp(max=BINS - 1)
    own = (labels[:, None] == torch.arange(classes)).long()
    cells = (torch.arange(classes) * 2 + own) * BINS + place
    counts = torch.bincount(cells.flatten(), minlength=classes * 2 * BINS)
    return counts.reshape(classes, 2, BINS).int()


def measured(counts: Mapping[str, Tensor], images: int) -> dict[str, float]:
    """What counts of so many images say, by the keys of :data:`~proxyfl.core.records.MEASURES`."""
    found: dict[str, float] = {}
    if HISTOGRAMS in counts and (area := auroc(counts[HISTOGRAMS])) is not None:
        found["auroc"] = area
    if CALIBRATION in counts:
        _, right, confidence = counts[CALIBRATION]
        found["ece"] = float((right - confidence).abs().sum() / images)
    if TOP5 in counts:
        found["top5"] = int(counts[TOP5]) / images
    return found


def auroc(histograms: Tensor) -> float | None:
    """The mean over classes of the area under the curve of one class against all others, as
    :func:`proxyfl.federation.measures.auroc` has it; None where no class has both images and others.
    """
    counts = histograms.double()
    sizes = counts.sum(2)
    known = (sizes > 0).all(1)
    if not bool(known.any()):
        return None
    if len(counts) == 2:  # both say the same
        known[0] = False
    others, own = counts[known, OTHERS], counts[known, OWN]
    below = others.cumsum(1) - others
    areas = (own * (below + others / 2)).sum(1) / (own.sum(1) * others.sum(1))
    return float(areas.mean())


def fit(counts: Mapping[str, Tensor], confusion: Tensor) -> bool:
    """Whether these can be counts of the images that a table of (true class, predicted class) tells of."""
    true, right = confusion.sum(1), int(confusion.diagonal().sum())
    images = int(true.sum())
    checks = {
        HISTOGRAMS: lambda sent: (
            bool((sent >= 0).all()) and torch.equal(sent.long().sum(2), torch.stack([images - true, true], 1))
        ),
        CALIBRATION: lambda sent: _calibration_fits(sent, images, right),
        TOP5: lambda sent: right <= int(sent) <= images,
    }
    return all(checks[name](sent) for name, sent in counts.items())


def _calibration_fits(sent: Tensor, images: int, right: int) -> bool:
    """In every bin as many right ones as images at most, and their confidences within the bin."""
    if not bool(sent.isfinite().all()):
        return False
    there, hit, confidence = sent
    edges = torch.arange(measures.BINS + 1, dtype=torch.float64) / measures.BINS
    slack = 1e-6 * (1 + there)
    return (
        torch.equal(sent[:2], sent[:2].round())
        and bool((hit >= 0).all() and (hit <= there).all())
        and (int(there.sum()), int(hit.sum())) == (images, right)
        and bool((confidence >= there * edges[:-1] - slack).all())
        and bool((confidence <= there * edges[1:] + slack).all())
    )
