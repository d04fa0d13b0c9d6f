"""SemiFL, FreeMatch and SoftMatch, from the facts of their papers and releases alone: NumPy in float64 with
gradients by hand, compared through the hooks that a federation calls, whatever is inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from byhand import PLAIN, Weights, close, drawn, gradients, of_cross_entropy, take, unlabelled
from proxyfl.core.state import Failure, Task, Tensors, Update
from proxyfl.data.dataset import Dataset
from proxyfl.data.partition import make_partition
from proxyfl.data.stream import Batch
from proxyfl.federation.loop import Engine
from proxyfl.federation.own_training import OwnImages
from proxyfl.methods import create
from proxyfl.methods.context import ClientContext
from proxyfl.runs.simulation import simulate
from toybox import little_config, play
from toyclient import CLASSES, Pool, Toy, arrays, context, logits_of, softmax

LR = 0.5
TRAIN = {**PLAIN, "lr": LR}


def moved(weights: Weights, *parts: Weights) -> Weights:
    """After a step along the sum of these gradients."""
    return [w - LR * sum(part[k] for part in parts) for k, w in enumerate(weights)]


# SemiFL


@dataclass
class Watched(Pool):
    """Remembers of which positions views were drawn last."""

    drawn: list[int] = field(default_factory=list)

    def weak_views(self, positions: Tensor) -> Tensor:
        self.drawn = positions.tolist()
        return super().weak_views(positions)


def mixed_step(
    w: Weights, strong: Tensor, fix: tuple[Tensor, np.ndarray], mix: tuple[Tensor, np.ndarray], share: float
) -> Weights:
    """CE(f(strong), y_fix) + a CE(f(x), y_fix) + (1 - a) CE(f(x), y_mix) with x = a fix + (1 - a) mix, a the
    share, in weak views.
    """
    counted = [True] * len(strong)
    x = share * fix[0].double() + (1 - share) * mix[0].double()
    first = of_cross_entropy(w, strong, fix[1].tolist(), counted)
    to_fix = of_cross_entropy(w, x, fix[1].tolist(), counted)
    to_mix = of_cross_entropy(w, x, mix[1].tolist(), counted)
    return moved(w, first, [share * a + (1 - share) * b for a, b in zip(to_fix, to_mix, strict=True)])


def nearest_share(found: Weights, *step: object) -> tuple[float, Weights]:
    """The share of a mixture with which the step comes nearest to what was found, and where that leads."""

    def apart(share: float) -> float:
        there = mixed_step(*step, share)  # type: ignore[arg-type]
        return sum(float(np.square(a - b).sum()) for a, b in zip(found, there, strict=True))

    grid = np.linspace(0, 1, 21)
    best = int(np.argmin([apart(share) for share in grid]))
    low, high = grid[max(0, best - 1)], grid[min(20, best + 1)]
    for _ in range(25):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if apart(left) < apart(right) else (left, high)
    return (low + high) / 2, mixed_step(*step, (low + high) / 2)  # type: ignore[arg-type]


def played(beta: float, steps: int) -> list[float]:
    """Steps of a client of SemiFL, each held to the equations; the shares of its mixtures."""
    pool, tau = Watched(drawn(30, 5)), 0.6
    method = create("semifl", {"tau": tau, "beta": beta})
    ctx = context(method, pool=pool, extras={}, batch=5, mu=1, **TRAIN)
    sent = softmax(logits_of(arrays(Toy(1).state_dict()), pool.weak))
    label, fixed = sent.argmax(1), [i for i in range(30) if sent[i].max() >= tau]
    assert 5 <= len(fixed) < 30
    method.begin_all(ctx)
    assert pool.selected == fixed
    shares, mixed = [], set()
    for k in range(steps):
        index = [fixed[(3 * k + j) % len(fixed)] for j in range(5)]
        weak, strong = drawn(5, 100 + k), drawn(5, 200 + k)
        before = arrays(ctx.model.state_dict())
        take(ctx, unlabelled(index, weak=weak, strong=strong))
        others = pool.drawn
        assert len(others) == 5
        mixed |= set(others)
        given = (strong, (weak, label[index]), (pool.weak[others], label[others]))
        found = arrays(ctx.model.state_dict())
        share, expected = nearest_share(found, before, *given)
        close(found, expected, 1e-5)
        shares.append(share)
    assert not mixed <= set(fixed)  # drawn from all images, the unsure ones too
    method.finish_all(ctx)
    return shares


def test_steps_of_semifl() -> None:
    shares = played(0.75, 12)
    assert min(shares) < 0.35
    assert max(shares) > 0.65  # not folded to one half of the range
    assert all(abs(share - 0.5) < 0.25 for share in played(100.0, 6))
    assert all(min(share, 1 - share) < 0.05 for share in played(0.001, 6))


class Watching:
    """An engine that remembers, for each round, the weights that were sent and the updates."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rounds = engine, list[tuple[Tensors, list[Update]]]()

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        asked = list(tasks)
        self.rounds.append((asked[0].weights, []))
        for answer in self.engine.run(asked):
            assert isinstance(answer, Update)
            self.rounds[-1][1].append(answer)
            yield answer

    def close(self) -> None:
        self.engine.close()


def test_the_server_of_semifl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of length 1 along a pseudo-gradient with momentum 0.5, clients counting the same; then its own
    training, which here adds 1 to every weight.
    """
    began: list[Tensors] = []

    def add_one(
        self: OwnImages, round: int, weights: Tensors, momentum: Tensors, epochs: int = 0, batch: int = 0
    ) -> tuple[Tensors, Tensors, dict[str, float]]:
        began.append(weights)
        return {name: value + 1 for name, value in weights.items()}, {}, {"loss": 0.0, "steps": 1.0}

    monkeypatch.setattr(OwnImages, "train", add_one)
    labels = np.arange(96) % 3
    vectors = np.random.default_rng(0).normal(size=(96, 5)) + 3 * np.eye(5)[labels]
    data = Dataset.of(vectors[:72], labels[:72], test=(vectors[72:], labels[72:]))
    split = make_partition(data, clients=3, per_class=4, scheme="dirichlet", alpha=0.5, where="server")
    protocol = create("semifl").protocol
    names = [name for name in protocol if name.startswith(("aggregation.", "federation.weighting"))]
    own = {name.replace(".", "__"): protocol[name] for name in names}
    small = {"clients": 3, "per_round": 3, "rounds": 3, "model__name": "mlp", "method__tau": 0.0}
    config = little_config("semifl", scenario="server", **small, **own)
    watched: list[Watching] = []

    def watch(engine: Engine) -> Watching:
        watched.append(Watching(engine))
        return watched[0]

    end = play(config, simulate(data, split), tmp_path, engine=watch)
    assert len({update.samples for update in watched[0].rounds[0][1]}) > 1  # and yet they count the same
    assert len(began) == 3  # after each mean, and not before round 1
    for name in began[0]:
        velocity = np.zeros(began[0][name].shape)
        for (sent, updates), found in zip(watched[0].rounds, began, strict=True):
            theta = sent[name].double().numpy()
            mean = np.mean([update.weights[name].double().numpy() for update in updates], axis=0)
            velocity = 0.5 * velocity + theta - mean
            np.testing.assert_allclose(found[name].double().numpy(), theta - velocity, atol=1e-5)
        assert torch.equal(end.weights[name], began[-1][name] + 1)


# FreeMatch and SoftMatch


def both(seed: int, index: Sequence[int], labelled: int) -> Batch:
    """Labelled images, and weak and strong views of unlabelled ones."""
    x, y = drawn(labelled, seed), torch.arange(labelled) % CLASSES
    none = torch.zeros(0, 1, 3, 3)
    weak, strong = drawn(len(index), seed + 1000), drawn(len(index), seed + 2000)
    return Batch(x, y, none, weak, strong, torch.tensor(index))


def weighted(w: Weights, images: Tensor, label: np.ndarray, weight: np.ndarray) -> Weights:
    """Gradients of the mean of weight times cross entropy."""
    upstream = softmax(logits_of(w, images))
    upstream[np.arange(len(label)), label] -= 1
    return gradients(w, images, upstream * weight[:, None] / len(label))


def supervised(w: Weights, batch: Batch) -> Weights:
    return of_cross_entropy(w, batch.x, batch.y.tolist(), [True] * len(batch.x))


def rounds_of(name: str, given: dict[str, object], pool: Pool) -> Iterator[tuple[ClientContext, Batch]]:
    """Batches of two rounds of a client, three in each; the second goes on from what the first kept."""
    method, state = create(name, given), dict[str, Tensor]()
    for round in (1, 2):
        ctx = context(method, round=round, pool=pool, extras={}, state=state, batch=4, mu=6, **TRAIN)
        method.begin_all(ctx)
        for k in range(3):
            yield ctx, both(10 * round + k, range(24), 4)
        method.finish_all(ctx)
        state = ctx.state


def fairness(w: Weights, images: Tensor, target: np.ndarray, counted: np.ndarray) -> Weights:
    """Gradients of 0.3 sum_c target_c log N(mean p / histogram)_c over the strong views that count; a class
    that none of them shows adds nothing.
    """
    p = softmax(logits_of(w, images))
    sure = p[counted]
    mean, inverse = sure.mean(0), inverted(np.bincount(sure.argmax(1), minlength=CLASSES) / len(sure))
    target = target * (inverse > 0)
    outer = 0.3 * (target / mean - target.sum() * inverse / (mean * inverse).sum())
    upstream = np.zeros_like(p)
    upstream[counted] = sure * (outer - (sure * outer).sum(1, keepdims=True)) / len(sure)
    return gradients(w, images, upstream)


def inverted(histogram: np.ndarray) -> np.ndarray:
    """With 1 / 0 as 0."""
    return np.where(histogram > 0, 1 / np.maximum(histogram, 1e-300), 0)


@pytest.mark.parametrize("statistics", ["client", "pool"])
def test_steps_of_freematch(statistics: str) -> None:
    pool, keep = Pool(drawn(40, 5)), 0.9
    given = {"freematch": {"ema": keep, "fairness": 0.3, "statistics": statistics}}
    threshold, average = 1 / CLASSES, np.full(CLASSES, 1 / CLASSES)
    histogram = np.full(CLASSES, 1 / CLASSES)
    if statistics == "pool":
        known = softmax(logits_of(arrays(Toy(1).state_dict()), pool.weak))
        threshold, average = known.max(1).mean(), known.mean(0)
        histogram = np.bincount(known.argmax(1), minlength=CLASSES) / 40
    shares = []
    for ctx, batch in rounds_of("freematch", given, pool):
        w = arrays(ctx.model.state_dict())
        p = softmax(logits_of(w, batch.u_weak))
        best, label = p.max(1), p.argmax(1)
        if statistics == "client":
            threshold = keep * threshold + (1 - keep) * best.mean()
            average = keep * average + (1 - keep) * p.mean(0)
            histogram = keep * histogram + (1 - keep) * np.bincount(label, minlength=CLASSES) / len(label)
        counted = best >= threshold * average[label] / average.max()
        shares.append(counted.mean())
        target = average * inverted(histogram)
        expected = moved(
            w,
            supervised(w, batch),
            weighted(w, batch.u_strong, label, counted.astype(float)),
            fairness(w, batch.u_strong, target / target.sum(), counted),
        )
        take(ctx, batch)
        close(arrays(ctx.model.state_dict()), expected, 1e-5)
    assert min(shares) < 1


@pytest.mark.parametrize("statistics", ["client", "pool"])
def test_steps_of_softmatch(statistics: str) -> None:
    pool, keep = Pool(drawn(40, 5)), 0.5
    given = {"softmatch": {"ema": keep, "statistics": statistics}}
    middle, spread, average = 1 / CLASSES, 1.0, None
    if statistics == "pool":
        known = softmax(logits_of(arrays(Toy(1).state_dict()), pool.weak))
        average = known.mean(0)
        best = aligned(known, average).max(1)
        middle, spread = best.mean(), best.var(ddof=1)
    least = []
    for ctx, batch in rounds_of("softmatch", given, pool):
        w = arrays(ctx.model.state_dict())
        p = softmax(logits_of(w, batch.u_weak))
        if statistics == "client":
            average = p.mean(0) if average is None else keep * average + (1 - keep) * p.mean(0)
        assert average is not None
        best, label = aligned(p, average).max(1), p.argmax(1)
        if statistics == "client":
            middle = keep * middle + (1 - keep) * best.mean()
            spread = keep * spread + (1 - keep) * best.var(ddof=1)
        weight = np.exp(-(np.minimum(best - middle, 0) ** 2) / (2 * spread / 4))
        least.append(weight.min())
        expected = moved(w, supervised(w, batch), weighted(w, batch.u_strong, label, weight))
        take(ctx, batch)
        close(arrays(ctx.model.state_dict()), expected, 1e-5)
    assert min(least) < 0.95


def aligned(p: np.ndarray, average: np.ndarray) -> np.ndarray:
    ratio = p / average
    return ratio / ratio.sum(1, keepdims=True)
