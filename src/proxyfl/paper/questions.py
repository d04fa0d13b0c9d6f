"""What the paper does not show: the comparisons named beforehand, controls, and questions of its reviewers.

Questions are asked on digits, where a run takes a minute of one core.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proxyfl.paper.items import EVERY, WORST, Item, Row, cells

COMMON_START = Row("Common start", "fedavg")
FEDAVG, SAGE, PROXYFL = Row("FedAvg", "fedavg"), Row("SAGE", "sage"), Row("ProxyFL", "proxyfl")
SAME_MASK = "FixMatch-GPL with ProxyFL's mask"
"""What GPT and ICPL are measured from: they differ from it by nothing else."""

_GPL = "fixmatch-gpl"
BASELINES = (Row("FixMatch-GPL", _GPL), Row(SAME_MASK, _GPL, {"method.mask": "either"}))
ASKED = (FEDAVG, BASELINES[0], PROXYFL)
"""Whom questions are asked about: without unlabelled images, with them, and with the paper's method."""

DIGITS = cells(["digits"], (0.1,))
SCRATCH_ROUNDS = 78
"""As many steps as a run at mini scale and its common start have together: 15 rounds of 5 epochs, 40 of 2."""


def _asked(values: Iterable[tuple[float, str, Mapping[str, Any]]]) -> tuple[Row, ...]:
    """Each method at each value: its place on the axis, in words, and what is set for it."""
    return tuple(
        Row(f"{row.label} · {words}", row.method, settings, at=place)
        for place, words, settings in values
        for row in ASKED
    )


ITEMS = (
    Item(
        "warm",
        "The common start of runs at mini scale",
        "FedAvg on labelled images, whose last weights every method of a seed starts from",
        rows=(COMMON_START,),
        columns=EVERY,
        notes=("Not in the paper, whose runs start from scratch.",),
    ),
    Item(
        "comparison",
        "The four pre-specified comparisons",
        "ProxyFL against FedAvg, FixMatch-GPL, FixMatch-GPL with ProxyFL's mask, and SAGE",
        rows=(FEDAVG, *BASELINES, SAGE, PROXYFL),
        columns=WORST,
        references=("ProxyFL",),
        corrected=True,
        notes=("Not in the paper: rows of its tables 1 and 2, on more seeds.",),
    ),
    Item(
        "control",
        "The comparison without a common start",
        "whether the ranking depends on the common start: from scratch, with the same total number of steps",
        rows=(FEDAVG, SAGE, PROXYFL),
        columns=cells(["svhn"], (0.1,)),
        settings={"federation.rounds": SCRATCH_ROUNDS},
        scratch=True,
        references=("ProxyFL",),
    ),
    Item(
        "labels",
        "Accuracy against labels per class",
        "one to fifty labelled images of each class",
        rows=_asked((n, f"{n} labels", {"labels.per_class": n}) for n in (1, 2, 5, 10, 20, 50)),
        columns=DIGITS,
        axis="labelled images per class",
    ),
    Item(
        "epochs",
        "Accuracy against local epochs",
        "one to ten passes over a client's images in a round",
        rows=_asked((n, f"E = {n}", {"train.epochs": n}) for n in (1, 2, 5, 10)),
        columns=DIGITS,
        axis="local epochs E",
    ),
    Item(
        "clients",
        "Accuracy against the number of clients",
        "the same images at more clients, of which a smaller share takes part in each round",
        rows=_asked(
            (n, f"{m} of {n} clients", {"partition.clients": n, "federation.per_round": m})
            for n, m in ((20, 8), (50, 8), (100, 8), (200, 10))
        ),
        columns=DIGITS,
        axis="clients, 8 per round (of 200: 10)",
    ),
    Item(
        "skew",
        "Labelled and unlabelled images skewed differently",
        "a Dirichlet alpha for each of the two; the smaller, the more the clients differ",
        rows=_asked(
            (
                place,
                f"labelled {ours:g} and unlabelled {theirs:g}",
                {
                    "partition.scheme": "dirichlet",
                    "partition.alpha_labelled": ours,
                    "partition.alpha_unlabelled": theirs,
                },
            )
            for place, (ours, theirs) in enumerate(((0.1, 10.0), (0.1, 0.1), (10.0, 0.1), (10.0, 10.0)), 1)
        ),
        columns=DIGITS,
    ),
)
