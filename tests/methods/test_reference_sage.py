"""SAGE's mixing of two labels, against loops over single numbers written from the equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import sage
from proxyfl.methods.losses import masked_divergence

KAPPA = math.log(2) / 0.05
TAU = 0.95
CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_share(local: list[float], teacher: list[float], kappa: float) -> float:
    gap = min(max(abs(max(local) - max(teacher)) + 1e-6, 1e-6), 1.0)
    return min(max(math.exp(-kappa * gap), 1e-6), 1.0)


def slow_mixture(local: list[float], teacher: list[float], share: float) -> list[float]:
    target = [0.0] * len(local)
    target[local.index(max(local))] += share
    target[teacher.index(max(teacher))] += 1 - share
    return target


def slow_divergence(target: list[float], logits: list[float], smoothing: float = 1e-10) -> float:
    top = max(logits)
    powers = [math.exp(g - top) for g in logits]
    total = 0.0
    for t, power in zip(target, powers, strict=True):
        p = power / sum(powers)
        total += (t + smoothing) * math.log((t + smoothing) / (p + smoothing))
    return total


def slow_unlabelled_loss(local: Tensor, teacher: Tensor, strong: Tensor) -> float:
    """Lu of SAGE: the mean over every image of the batch, those that nobody is sure about as zero."""
    total = 0.0
    for mine, theirs, logits in zip(local.tolist(), teacher.tolist(), strong.tolist(), strict=True):
        if max(mine) < TAU and max(theirs) < TAU:
            continue
        share = slow_share(mine, theirs, KAPPA) if max(mine) >= TAU else 0.0
        total += slow_divergence(slow_mixture(mine, theirs, share), logits)
    return total / len(local)


def draw(seed: int, rows: int, classes: int) -> Tensor:
    """Probabilities of every sort: flat ones, peaked ones, and some that are one-hot to the last bit."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 5.0, 60.0, 2000.0], size=(rows, 1))
    return torch.from_numpy(scale * rng.normal(size=(rows, classes))).softmax(1)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("kappa", [KAPPA, 2.0, 500.0])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_share_of_the_local_label(seed: int, classes: int, kappa: float) -> None:
    local, teacher = draw(seed, 40, classes), draw(seed + 100, 40, classes)
    pairs = zip(local.tolist(), teacher.tolist(), strict=True)
    expected = [slow_share(mine, theirs, kappa) for mine, theirs in pairs]
    found = sage.local_share(local, teacher, kappa)
    assert found.shape == (40,)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    single = sage.local_share(local.float(), teacher.float(), kappa)
    assert single.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_target(seed: int, classes: int) -> None:
    local, teacher = draw(seed, 40, classes), draw(seed + 100, 40, classes)
    share = torch.from_numpy(np.random.default_rng(seed).uniform(size=40))
    found = sage.mixed_target(local, teacher, share)
    assert found.shape == (40, classes)
    for i in range(40):
        expected = slow_mixture(local[i].tolist(), teacher[i].tolist(), share[i].item())
        assert found[i].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_loss_on_unlabelled_images(seed: int, classes: int) -> None:
    local, teacher = draw(seed, 40, classes), draw(seed + 100, 40, classes)
    strong = torch.from_numpy(4 * np.random.default_rng(seed).normal(size=(40, classes)))
    sure = local.max(1).values >= TAU
    mask = sure | (teacher.max(1).values >= TAU)
    assert mask.any()
    assert not mask.all()
    share = torch.where(sure, sage.local_share(local, teacher, KAPPA), 0.0)
    target = sage.mixed_target(local, teacher, share)
    expected = slow_unlabelled_loss(local, teacher, strong)
    assert masked_divergence(strong, target, mask).item() == pytest.approx(expected, rel=1e-9)
    single = masked_divergence(strong.float(), target.float(), mask)
    assert single.item() == pytest.approx(expected, rel=1e-5)


def test_gradient_of_the_loss_by_differences() -> None:
    target = sage.mixed_target(draw(3, 5, 4), draw(4, 5, 4), rows([0.0, 0.2, 0.5, 0.9, 1.0])[0])
    mask = torch.tensor([True, True, False, True, True])
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(5, 4))).requires_grad_()
    masked_divergence(logits, target, mask).backward()
    assert logits.grad is not None

    def loss(values: np.ndarray) -> float:
        terms = (slow_divergence(target[i].tolist(), values[i].tolist()) for i in range(5) if mask[i])
        return sum(terms) / 5

    base, step = logits.detach().numpy(), 1e-5
    for i, c in np.ndindex(5, 4):
        nudge = np.zeros((5, 4))
        nudge[i, c] = step
        slope = (loss(base + nudge) - loss(base - nudge)) / (2 * step)
        assert logits.grad[i, c].item() == pytest.approx(slope, abs=1e-8)


# discrepancies 0.05, 0, 0.1, 0.45: exp(-13.862944 * (gap + 0.000001))
LOCAL = [[0.95, 0.03, 0.02], [0.10, 0.80, 0.10], [0.00, 0.00, 1.00], [0.05, 0.00, 0.95]]
TEACHER = [[0.05, 0.90, 0.05], [0.80, 0.10, 0.10], [0.10, 0.00, 0.90], [0.50, 0.49, 0.01]]
SHARES = [0.499993, 0.999986, 0.249997, 0.001953]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_of_four_images(dtype: torch.dtype) -> None:
    found = sage.local_share(torch.tensor(LOCAL, dtype=dtype), torch.tensor(TEACHER, dtype=dtype), KAPPA)
    assert found.tolist() == pytest.approx(SHARES, abs=6e-7)


def test_targets_of_four_images() -> None:
    found = sage.mixed_target(rows(*LOCAL), rows(*TEACHER), rows(SHARES)[0])
    expected = [
        [0.499993, 0.500007, 0.0],
        [0.000014, 0.999986, 0.0],
        [0.0, 0.0, 1.0],  # both models say the last class
        [0.998047, 0.0, 0.001953],
    ]
    for i in range(4):
        assert found[i].tolist() == pytest.approx(expected[i], abs=1e-9)


def test_a_share_never_falls_below_its_floor() -> None:
    local, teacher = rows([1.0, 0.0, 0.0]), rows([0.25, 0.5, 0.25])
    assert sage.local_share(local, teacher, 10_000.0).tolist() == pytest.approx([1e-6], rel=1e-9)
    assert sage.local_share(local, teacher, 2.0).tolist() == pytest.approx([0.3678787054], abs=1e-10)


def test_no_decay_trusts_the_local_label_alone() -> None:
    local, teacher = rows(*LOCAL), rows(*TEACHER)
    assert sage.local_share(local, teacher, 0.0).tolist() == [1.0] * 4


def test_divergence_of_one_image() -> None:
    # target (1/2, 1/2, 0) on softmax (1/4, 1/4, 1/2): ln 2, but for the smoothing
    logits = rows([0.0, 0.0, math.log(2)])
    target = sage.mixed_target(rows([0.6, 0.4, 0.0]), rows([0.4, 0.6, 0.0]), rows([0.5])[0])
    sure = torch.tensor([True])
    assert masked_divergence(logits, target, sure).item() == pytest.approx(0.693147, abs=1e-6)
    assert masked_divergence(logits, target, ~sure).item() == 0.0


def test_an_impossible_target_costs_what_the_smoothing_allows() -> None:
    # half of the target on a class of probability 0: 1/2 ln(1/2 / 1) + 1/2 ln(1/2 / 1e-10)
    target = sage.mixed_target(rows([0.9, 0.1]), rows([0.1, 0.9]), rows([0.5])[0])
    found = masked_divergence(rows([1000.0, -1000.0]), target, torch.tensor([True]))
    assert found.item() == pytest.approx(-math.log(2) + 5 * math.log(10), abs=1e-6)
    assert found.item() == pytest.approx(10.819778, abs=1e-5)


def test_no_images() -> None:
    none = torch.zeros(0, 3)
    share = sage.local_share(none, none, KAPPA)
    assert share.shape == (0,)
    assert sage.mixed_target(none, none, share).shape == (0, 3)
