"""Prototypes as an add-on: which images make them, when, and what they pull, against a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxyfl.data.stream import Batch
from proxyfl.methods import create
from toyclient import CLASSES, FEATURES, Toy, arrays, batch, context, predictions, slow_features, step

TAU, LABELLED, UNLABELLED = 0.7, 3, 16
PROTOTYPES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(9))
PRESENT = torch.tensor([True, False, True, True])


def images(number: int) -> Batch:
    return batch(LABELLED, UNLABELLED, seed=30 + number)


def assigned(given: Batch, assign: str, teacher: int) -> list[tuple[np.ndarray, int]]:
    """Features and class of the images that have one."""
    mix = arrays(Toy(2).state_dict())[0]
    found = list(zip(slow_features(mix, given.x), given.y.tolist(), strict=True))
    if assign == "labelled":
        return found
    named, trusted = predictions(teacher, given.u_weak), predictions(1, given.u_weak)
    for feature, row, other in zip(slow_features(mix, given.u_weak), named, trusted, strict=True):
        if assign == "all":
            found.append((feature, other.index(max(other))))
        elif max(row) >= TAU:
            found.append((feature, row.index(max(row))))
    return found


@pytest.mark.parametrize("teacher", ["global", "local"])
@pytest.mark.parametrize("assign", ["confident", "all", "labelled"])
def test_prototypes_of_a_round(assign: str, teacher: str) -> None:
    options = {"tau": TAU, "teacher": teacher, "mask": teacher, "proto": {"assign": assign, "weight": 2.0}}
    method = create("proto", options)
    extras = {"proto/prototypes": PROTOTYPES, "proto/present": PRESENT}
    ctx = context(method, epochs=2, extras=extras)
    method.begin_all(ctx)
    expected: list[tuple[np.ndarray, int]] = []
    for epoch, number in ((0, 0), (0, 1), (1, 2), (1, 3)):
        ctx.epoch = epoch
        outputs = step(ctx, images(number))
        mine = assigned(images(number), assign, 1 if teacher == "global" else 2)
        pull = [((z - PROTOTYPES[c].numpy()) ** 2).mean() if PRESENT[c] else 0.0 for z, c in mine]
        assert ctx.terms(outputs)["proto"].item() == pytest.approx(2 * sum(pull) / len(mine), rel=1e-4)
        method.observe_all(outputs, ctx)
        if epoch == 1:
            expected += mine
    sent = method.finish_all(ctx)
    for c in range(CLASSES):
        members = [z for z, label in expected if label == c]
        assert sent["proto/counts"][c].item() == len(members)
        mean = np.mean(members, axis=0) if members else np.zeros(FEATURES)
        assert sent["proto/means"][c].tolist() == pytest.approx(mean.tolist(), rel=1e-4, abs=1e-5)
    unlabelled = len(expected) - 2 * LABELLED
    if assign == "confident":
        assert 0 < unlabelled < 2 * UNLABELLED
