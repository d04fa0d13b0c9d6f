"""FreeMatch's and SoftMatch's masks, against loops over numbers written from the equations."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import toyclient
from proxyfl.core.errors import MethodError
from proxyfl.methods import create
from proxyfl.methods.addons import freematch, softmatch
from proxyfl.methods.context import Pseudo

Rows = list[list[float]]


def shares(seed: int, rows: int, classes: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).softmax(1).float()


def mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def best(row: list[float]) -> int:
    place = 0
    for c in range(len(row)):
        if row[c] > row[place]:
            place = c
    return place


class SlowFreeMatch:
    """One client's statistics, a step after the other."""

    def __init__(self, classes: int, ema: float) -> None:
        self.classes, self.ema = classes, ema
        self.threshold = 1 / classes
        self.average = [1 / classes] * classes
        self.labels = [1 / classes] * classes

    def step(self, rows: Rows) -> list[bool]:
        ema = self.ema
        self.threshold = ema * self.threshold + (1 - ema) * mean([row[best(row)] for row in rows])
        for c in range(self.classes):
            self.average[c] = ema * self.average[c] + (1 - ema) * mean([row[c] for row in rows])
            named = mean([1.0 if best(row) == c else 0.0 for row in rows])
            self.labels[c] = ema * self.labels[c] + (1 - ema) * named
        return [
            row[best(row)] >= self.threshold * self.average[best(row)] / max(self.average) for row in rows
        ]

    def fairness(self, strong: Rows, mask: list[bool]) -> float:
        chosen = [row for row, keep in zip(strong, mask, strict=True) if keep]
        if not chosen:
            return 0.0
        first, second = [], []
        for c in range(self.classes):
            first.append(self.average[c] / self.labels[c] if self.labels[c] else 0.0)
            named = mean([1.0 if best(row) == c else 0.0 for row in chosen])
            second.append(mean([row[c] for row in chosen]) / named if named else 0.0)
        total = 0.0
        for a, b in zip(first, second, strict=True):
            total += a / sum(first) * math.log(b / sum(second) + 1e-12)
        return total


class SlowSoftMatch:
    def __init__(self, classes: int, ema: float, sigmas: float = 2.0, align: bool = True) -> None:
        self.ema, self.sigmas, self.align = ema, sigmas, align
        self.average: list[float] = []
        self.mean, self.variance = 1 / classes, 1.0

    def step(self, rows: Rows) -> list[float]:
        ema, classes = self.ema, len(rows[0])
        batch = [mean([row[c] for row in rows]) for c in range(classes)]
        if not self.average:
            self.average = batch
        else:
            self.average = [ema * old + (1 - ema) * new for old, new in zip(self.average, batch, strict=True)]
        sure = []
        for row in rows:
            lifted = [p / a if self.align else p for p, a in zip(row, self.average, strict=True)]
            sure.append(max(lifted) / sum(lifted))
        middle = mean(sure)
        spread = sum((value - middle) ** 2 for value in sure) / (len(sure) - 1) if len(sure) > 1 else 0.0
        self.mean = ema * self.mean + (1 - ema) * middle
        self.variance = ema * self.variance + (1 - ema) * spread
        width = 2 * self.variance / self.sigmas**2
        return [math.exp(-(min(value - self.mean, 0.0) ** 2) / width) for value in sure]


def follow(name: str, batches: list[Tensor], **options: Any) -> tuple[list[Pseudo], dict[str, Tensor]]:
    """What the mask makes of batches of predictions in two rounds of a client, and what it then keeps."""
    method = create(f"fixmatch-lpl+{name}", {name: {"statistics": "client", **options}})
    (addon,) = method.addons
    found, state = [], {}
    for part in (batches[:2], batches[2:]):
        ctx = toyclient.context(method, state=state)
        ctx.classes = batches[0].shape[1]
        addon.begin(ctx)
        for rows in part:
            sure = torch.zeros(len(rows), dtype=torch.bool)
            found.append(addon.weigh(Pseudo(rows.argmax(1), sure, scores=rows), None, ctx))
        addon.finish(ctx)
        state = ctx.state
    return found, state


@pytest.mark.parametrize(("seed", "classes", "ema"), [(0, 3, 0.5), (1, 10, 0.9), (2, 2, 0.0), (3, 10, 0.999)])
def test_freematch_over_two_rounds(seed: int, classes: int, ema: float) -> None:
    batches = [shares(seed + 10 * place, size, classes) for place, size in enumerate((12, 9, 12, 1))]
    slow = SlowFreeMatch(classes, ema)
    expected = [slow.step(rows.tolist()) for rows in batches]
    found, state = follow("freematch", batches, ema=ema)
    assert [pseudo.mask.tolist() for pseudo in found] == expected
    assert all(pseudo.weight is None for pseudo in found)
    assert float(state["freematch/threshold"]) == pytest.approx(slow.threshold, rel=1e-5)
    assert state["freematch/average"].tolist() == pytest.approx(slow.average, rel=1e-5)
    assert state["freematch/labels"].tolist() == pytest.approx(slow.labels, rel=1e-5, abs=1e-7)
    strong, mask = shares(seed + 99, 12, classes), torch.arange(12) % 3 > 0
    fair = freematch.fairness_loss(
        strong.log(), mask, torch.tensor(slow.average).double(), torch.tensor(slow.labels).double()
    )
    assert float(fair) == pytest.approx(slow.fairness(strong.tolist(), mask.tolist()), rel=1e-6)


def test_freematch_in_numbers() -> None:
    average = torch.tensor([0.5, 0.25, 0.25])
    assert freematch.class_thresholds(torch.tensor(0.8), average, 0.0, 1.0).tolist() == pytest.approx(
        [0.8, 0.4, 0.4]
    )
    # the threshold is bounded before classes lower it
    bounded = freematch.class_thresholds(torch.tensor(0.8), average, 0.9, 0.95)
    assert bounded.tolist() == pytest.approx([0.9, 0.45, 0.45])
    # two images of class 0: mean (0.7, 0.2, 0.1), histogram (1, 0, 0): all of the modulated mean is class 0
    strong = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]).log()
    mask, labels = torch.tensor([True, True, False]), torch.tensor([0.5, 0.25, 0.25])
    # N(average / labels) is (1/3, 1/3, 1/3), hence 1/3 log 1 + 2/3 log 1e-12
    fair = freematch.fairness_loss(strong, mask, average, labels)
    assert float(fair) == pytest.approx(2 / 3 * math.log(1e-12), rel=1e-5)
    assert float(freematch.fairness_loss(strong, mask & False, average, labels)) == 0.0


def test_the_fairness_loss_moves_masked_images_alone() -> None:
    strong = shares(5, 6, 3).log().requires_grad_()
    mask = torch.tensor([True, True, True, True, False, False])
    uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
    freematch.fairness_loss(strong, mask, uniform, uniform).backward()
    assert strong.grad is not None
    assert bool(strong.grad[:4].abs().sum() > 0)
    assert strong.grad[4:].abs().sum() == 0


@pytest.mark.parametrize(("seed", "classes", "ema"), [(0, 3, 0.5), (1, 10, 0.9), (2, 2, 0.0), (3, 10, 0.999)])
@pytest.mark.parametrize("align", [True, False])
def test_softmatch_over_two_rounds(seed: int, classes: int, ema: float, align: bool) -> None:
    batches = [shares(seed + 10 * place, size, classes) for place, size in enumerate((12, 9, 12, 2))]
    slow = SlowSoftMatch(classes, ema, sigmas=1.5, align=align)
    expected = [slow.step(rows.tolist()) for rows in batches]
    found, state = follow("softmatch", batches, ema=ema, sigmas=1.5, align=align)
    for pseudo, weights in zip(found, expected, strict=True):
        assert pseudo.weight is not None
        assert pseudo.weight.tolist() == pytest.approx(weights, rel=1e-4, abs=1e-7)
        assert pseudo.mask.tolist() == [weight == 1 for weight in weights]
    assert state["softmatch/average"].tolist() == pytest.approx(slow.average, rel=1e-5)
    assert state["softmatch/moments"].tolist() == pytest.approx(
        [slow.mean, slow.variance], rel=1e-4, abs=1e-9
    )


def test_softmatch_in_numbers() -> None:
    confidence, mean, variance = torch.tensor([0.9, 0.6, 0.4]), torch.tensor(0.6), torch.tensor(0.08)
    # (0.4 - 0.6)^2 / (2 * 0.08 / 4) = 1
    found = softmatch.soft_weight(confidence, mean, variance, sigmas=2.0)
    assert found.tolist() == pytest.approx([1.0, 1.0, math.exp(-1)], rel=1e-5)
    assert softmatch.soft_weight(confidence, mean, torch.tensor(0.0), 2.0).tolist() == [1.0, 1.0, 0.0]
    rows, average = torch.tensor([[0.6, 0.4]]), torch.tensor([0.75, 0.25])
    # 0.6 / 0.75 = 0.8 and 0.4 / 0.25 = 1.6: the second class is the likelier one
    assert softmatch.aligned(rows, average).tolist() == [pytest.approx([1 / 3, 2 / 3])]


@pytest.mark.parametrize("parent", ["fixmatch-lpl", "proxyfl", "sage", "fedlabel"])
def test_losses_take_the_weights(parent: str) -> None:
    method = create(f"{parent}+softmatch", {"tau": 0.0})
    ctx = toyclient.context(method, pool=toyclient.Pool(toyclient.batch().u_weak))
    method.begin_all(ctx)
    outputs = toyclient.step(ctx)
    pseudo = outputs.pseudo
    assert pseudo is not None
    assert pseudo.weight is not None
    assert 0 < float(pseudo.weight.min()) < 1
    count = len(pseudo.label)
    found = method.unlabelled_loss(outputs.strong, pseudo)
    single = []
    for row in range(count):
        alone = Pseudo(pseudo.label[row : row + 1], torch.tensor([True]))
        alone.target = pseudo.target[row : row + 1] if pseudo.target is not None else None
        single.append(method.unlabelled_loss(outputs.strong[row : row + 1], alone).item())
    weights = pseudo.weight.tolist()
    expected = sum(weight * loss for weight, loss in zip(weights, single, strict=True)) / count
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_which_predictions_are_weighed() -> None:
    """Those that named the labels: of the local model, of the global one, or of both mixed."""
    images = toyclient.batch().u_weak
    local, received = (torch.tensor(toyclient.predictions(seed, images)) for seed in (2, 1))
    for name, expected in (("freematch", local), ("fixmatch-gpl+freematch", received)):
        method = create(name, {"freematch": {"ema": 0.0, "statistics": "client"}})
        ctx = toyclient.context(method)
        method.begin_all(ctx)
        outputs = toyclient.step(ctx)
        assert outputs.pseudo is not None
        torch.testing.assert_close(outputs.pseudo.scores, expected.float())
        slow = SlowFreeMatch(toyclient.CLASSES, 0.0)
        assert outputs.pseudo.mask.tolist() == slow.step(expected.tolist())
    for name in ("sage+freematch", "fedlabel+freematch"):
        method = create(name, {"freematch": {"statistics": "client"}})
        ctx = toyclient.context(method)
        method.begin_all(ctx)
        scores = toyclient.step(ctx).pseudo.scores  # type: ignore[union-attr]
        torch.testing.assert_close(scores.sum(1), torch.ones(len(images)))
        low, high = torch.minimum(local, received), torch.maximum(local, received)
        assert bool(((scores >= low - 1e-5) & (scores <= high + 1e-5)).all())


def test_statistics_of_the_whole_pool() -> None:
    """Once a round, from the global model; nothing is kept and steps do not move them."""
    views = torch.randn(23, 1, 3, 3, generator=torch.Generator().manual_seed(8))
    rows = toyclient.predictions(1, views)
    free, soft = SlowFreeMatch(toyclient.CLASSES, 0.0), SlowSoftMatch(toyclient.CLASSES, 0.0)
    free.step(rows)
    soft.step(rows)
    for name in ("freematch", "softmatch"):
        method = create(name)
        assert not method.keeps_state
        assert create(name, {name: {"statistics": "client"}}).keeps_state
        ctx = toyclient.context(method, pool=toyclient.Pool(views))
        method.begin_all(ctx)
        toyclient.step(ctx)
        kept = ctx.memory[name]
        if name == "freematch":
            assert float(kept["threshold"]) == pytest.approx(free.threshold, rel=1e-5)
            assert kept["labels"].tolist() == pytest.approx(free.labels, abs=1e-6)
        else:
            assert kept["moments"].tolist() == pytest.approx([soft.mean, soft.variance], rel=1e-4)
        assert kept["average"].tolist() == pytest.approx(free.average, rel=1e-5)
        method.finish_all(ctx)
        assert ctx.state == {}


def test_add_ons_may_keep_the_parents_sure_images() -> None:
    method = create(
        "proxyfl+softmatch", {"tau": 0.5, "softmatch": {"sure": "parent", "statistics": "client"}}
    )
    ctx = toyclient.context(method)
    method.begin_all(ctx)
    outputs = toyclient.step(ctx)
    assert outputs.pseudo is not None
    confident = method.confident(outputs.local_weak) | method.confident(outputs.global_weak)
    assert outputs.pseudo.mask.tolist() == confident.tolist()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fedavg+freematch", "none of its losses"),
        ("feddb+softmatch", "none of its losses"),
        ("fedloke+freematch", "none of its losses"),
        ("softmatch+freematch", r"\+softmatch already"),
    ],
)
def test_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(MethodError, match=reason):
        create(name)
