"""AUROC from counts: what a site may send where single scores stay with it.

Of every class k the log-odds of p_k are counted in bins of equal width, apart for images of the class and of
others. Counts add up over sites. Two scores in one bin are held to be equal, so the area is off by at most
half the share of pairs that meet in a bin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proxyfl.core.config import Config

LIMIT = 12.0
"""Log-odds beyond it, probabilities of less than one in 160,000, are in the outermost bins."""

BINS = 240
OTHERS, OWN = 0, 1
"""Which images a row counts: those of other classes, and those of the class."""


def counts_scores(config: Config) -> bool:
    """Whether an experiment asks sites for histograms; under differential privacy none does."""
    return config.keep.metrics == "all" and not config.privacy.clip


def score_histograms(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Counts (class, others or own, bin) of the probabilities (images, classes)."""
    classes = probabilities.shape[1]
    odds = torch.logit(probabilities.double()).clamp(-LIMIT, LIMIT)
    place = ((odds + LIMIT) * (BINS / (2 * LIMIT))).long().clamp(max=BINS - 1)
    own = (labels[:, None] == torch.arange(classes)).long()
    cells = (torch.arange(classes) * 2 + own) * BINS + place
    counts = torch.bincount(cells.flatten(), minlength=classes * 2 * BINS)
    return counts.reshape(classes, 2, BINS).int()


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


def fit(histograms: Tensor, confusion: Tensor) -> bool:
    """Whether these can be the histograms of the images that a table of counts tells of."""
    true = confusion.sum(1)
    sizes = torch.stack([int(true.sum()) - true, true], 1)
    return bool((histograms >= 0).all()) and torch.equal(histograms.long().sum(2), sizes)
