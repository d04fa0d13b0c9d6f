"""FedLabel's choice of an expert and its two losses, against loops written from the equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import fedlabel
from proxyfl.methods.losses import masked_cross_entropy, masked_divergence

TAU = 0.95
SCORES = ["confidence", "entropy", "variance"]
CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_score(p: list[float], score: str) -> float:
    """The larger, the better the expert."""
    if score == "confidence":
        return max(p)
    if score == "entropy":
        return sum(x * math.log(x) for x in p if x > 0)
    mean = sum(p) / len(p)
    return sum((x - mean) ** 2 for x in p) / len(p)


def slow_label(local: list[float], teacher: list[float], score: str) -> int:
    expert = teacher if slow_score(teacher, score) >= slow_score(local, score) else local
    return expert.index(max(expert))


def slow_log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.log(sum(math.exp(g - top) for g in logits))
    return [g - top - total for g in logits]


def slow_pseudo_label_loss(local: Tensor, teacher: Tensor, strong: Tensor, over: str) -> float:
    total, selected = 0.0, 0
    for mine, theirs, logits in zip(local.tolist(), teacher.tolist(), strong.tolist(), strict=True):
        if max(max(mine), max(theirs)) >= TAU:
            selected += 1
            total -= slow_log_softmax(logits)[slow_label(mine, theirs, "confidence")]
    return total / (len(local) if over == "batch" else selected)


def slow_consistency(local: Tensor, teacher: Tensor, target: Tensor, strong: Tensor) -> float:
    total = 0.0
    for i in range(len(local)):
        mine, theirs = local[i].tolist(), teacher[i].tolist()
        if mine.index(max(mine)) == theirs.index(max(theirs)):
            logs = slow_log_softmax(strong[i].tolist())
            pairs = zip(target[i].tolist(), logs, strict=True)
            total += sum(q * (math.log(q) - log) for q, log in pairs if q > 0)
    return total / len(local)


def draw(seed: int, rows: int, classes: int) -> Tensor:
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 5.0, 20.0], size=(rows, 1))
    return torch.from_numpy(scale * rng.normal(size=(rows, classes))).softmax(1)


def label(local: list[float], teacher: list[float], score: str, dtype: torch.dtype = torch.float64) -> int:
    found = fedlabel.expert(
        torch.tensor([local], dtype=dtype), torch.tensor([teacher], dtype=dtype), score=score
    ).argmax(1)
    return int(found.item())


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_labels_of_the_expert(seed: int, classes: int, score: str) -> None:
    local, teacher = draw(seed, 60, classes), draw(seed + 100, 60, classes)
    pairs = zip(local.tolist(), teacher.tolist(), strict=True)
    expected = [slow_label(mine, theirs, score) for mine, theirs in pairs]
    found = fedlabel.expert(local, teacher, score=score).argmax(1)
    assert found.dtype == torch.int64
    assert found.tolist() == expected
    if classes > 2:
        assert found.tolist() != local.argmax(1).tolist()
        assert found.tolist() != teacher.argmax(1).tolist()


def test_confidence_is_the_default() -> None:
    local, teacher = draw(5, 60, 10), draw(6, 60, 10)
    by_confidence = fedlabel.expert(local, teacher, score="confidence").argmax(1)
    assert fedlabel.expert(local, teacher).argmax(1).tolist() == by_confidence.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("teacher", "by_confidence", "by_entropy", "by_variance"),
    [
        # against (0.6, 0, 0.4): entropy 0.673 nats, variance 0.0622
        ([0.15, 0.62, 0.23], 1, 0, 0),  # entropy 0.919, variance 0.0422
        ([0.155, 0.69, 0.155], 1, 0, 1),  # entropy 0.834, variance 0.0636
        ([0.0, 0.97, 0.03], 1, 1, 1),  # entropy 0.135, variance 0.2028
        ([0.3, 0.4, 0.3], 0, 0, 0),  # entropy 1.089, variance 0.0022
    ],
)
def test_three_scores_of_one_image(
    teacher: list[float], by_confidence: int, by_entropy: int, by_variance: int, dtype: torch.dtype
) -> None:
    local = [0.6, 0.0, 0.4]
    found = [label(local, teacher, score, dtype) for score in SCORES]
    assert found == [by_confidence, by_entropy, by_variance]


@pytest.mark.parametrize("score", SCORES)
def test_equal_experts_leave_it_to_the_global_model(score: str) -> None:
    assert label([0.75, 0.25], [0.25, 0.75], score) == 1
    assert label([0.25, 0.75], [0.75, 0.25], score) == 0


def test_equal_confidence_leaves_it_to_the_global_model_whatever_the_rest() -> None:
    assert label([0.5, 0.5, 0.0], [0.25, 0.25, 0.5], "confidence") == 2


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certainty_is_the_best_score(score: str, dtype: torch.dtype) -> None:
    assert label([1.0, 0.0, 0.0], [0.05, 0.9, 0.05], score, dtype) == 0
    assert label([0.05, 0.9, 0.05], [0.0, 0.0, 1.0], score, dtype) == 2


@pytest.mark.parametrize("score", ["confidence", "entropy"])
def test_two_certain_experts_leave_it_to_the_global_model(score: str) -> None:
    assert label([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], score) == 1


@pytest.mark.parametrize("score", SCORES)
def test_no_images(score: str) -> None:
    found = fedlabel.expert(torch.zeros(0, 3), torch.zeros(0, 3), score=score).argmax(1)
    assert found.shape == (0,)
    assert found.dtype == torch.int64


@pytest.mark.parametrize("over", ["batch", "selected"])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_pseudo_label_loss(seed: int, classes: int, over: str) -> None:
    local, teacher = draw(seed, 60, classes), draw(seed + 100, 60, classes)
    strong = torch.from_numpy(4 * np.random.default_rng(seed).normal(size=(60, classes)))
    mask = torch.maximum(local.max(1).values, teacher.max(1).values) >= TAU
    assert mask.any()
    assert not mask.all()
    found = masked_cross_entropy(strong, fedlabel.expert(local, teacher).argmax(1), mask, over=over)
    expected = slow_pseudo_label_loss(local, teacher, strong, over)
    assert found.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_consistency_where_both_agree(seed: int, classes: int) -> None:
    local = draw(seed, 60, classes)
    teacher = torch.where(torch.arange(60)[:, None] % 2 == 0, local, draw(seed + 100, 60, classes))
    target = draw(seed + 200, 60, classes)
    # no strong probability so small that the library's smoothing by 1e-10 shows
    strong = torch.from_numpy(np.random.default_rng(seed).normal(size=(60, classes)))
    agree = local.argmax(1) == teacher.argmax(1)
    found = masked_divergence(strong, target, agree)
    expected = slow_consistency(local, teacher, target, strong)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_losses_of_three_images() -> None:
    # softmax of the strong views: (1/2, 1/4, 1/4), (1/3, 1/3, 1/3), (1/8, 1/8, 3/4)
    strong = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 6.0]]).double().log()
    local = torch.tensor([[0.97, 0.02, 0.01], [0.60, 0.30, 0.10], [0.10, 0.20, 0.70]]).double()
    teacher = torch.tensor([[0.01, 0.98, 0.01], [0.50, 0.25, 0.25], [0.02, 0.02, 0.96]]).double()
    chosen = fedlabel.expert(local, teacher).argmax(1)
    assert chosen.tolist() == [1, 0, 2]
    mask = torch.tensor([True, False, True])
    # (ln 4 + ln 4/3) / 3 = 0.557992, and over the two selected 0.836988
    assert masked_cross_entropy(strong, chosen, mask).item() == pytest.approx(0.557992, abs=1e-6)
    assert masked_cross_entropy(strong, chosen, mask, over="selected").item() == pytest.approx(
        0.836988, abs=1e-6
    )
    # both agree on the last two: KL((1/2, 1/2, 0) || 1/3) = ln 3/2, KL((0, 1/4, 3/4) || .) = 1/4 ln 2
    target = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.25, 0.75]]).double()
    agree = local.argmax(1) == teacher.argmax(1)
    assert agree.tolist() == [False, True, True]
    # (0.405465 + 0.173287) / 3
    assert masked_divergence(strong, target, agree).item() == pytest.approx(0.192917, abs=1e-6)
