"""(FL)² against loops that follow the paper: thresholds by class, the step up, consistency, weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.state import Update
from proxyfl.data.stream import Batch
from proxyfl.methods import create
from proxyfl.methods.flfl import adaptive_threshold, ascended
from proxyfl.runs.simulation import prepare
from toybox import assemble, little_config, play, same_bits
from toyclient import CLASSES, Pool, arrays, batch, context, predictions, slow_features, softmax

POOL, TAU, RHO, ETA, LR, CLIP = 20, 0.6, 0.3, 0.02, 0.1, 0.5


def slow_kept(rows: list[list[float]]) -> tuple[float, list[int]]:
    """Mean confidence, and the images that the thresholds of their classes admit."""
    count = len(rows)
    tau = sum(max(row) for row in rows) / count
    share = [sum(row[c] for row in rows) / count for c in range(len(rows[0]))]
    kept = []
    for i, row in enumerate(rows):
        best = row.index(max(row))
        if row[best] >= tau * share[best] / max(share):
            kept.append(i)
    return tau, kept


Weights = list[np.ndarray]


def back(weights: Weights, images: torch.Tensor, slope: np.ndarray) -> Weights:
    """Gradients of map, rows and bias, given those of the logits."""
    mix, rows, _ = weights
    features = slow_features(mix, images)
    inner = (slope @ rows) * (1 - features**2)
    return [images.double().flatten(1).numpy().T @ inner, slope.T @ features, slope.sum(0)]


def probabilities(weights: Weights, images: torch.Tensor) -> np.ndarray:
    mix, rows, bias = weights
    return softmax(slow_features(mix, images) @ rows.T + bias)


def cross_entropy_slope(p: np.ndarray, labels: list[int], taking_part: list[bool]) -> np.ndarray:
    slope = np.zeros_like(p)
    for k, label in enumerate(labels):
        if taking_part[k]:
            slope[k] = p[k] - np.eye(CLASSES)[label]
    return slope / max(1, sum(taking_part))


def slow_up(weights: Weights, gradient: Weights) -> Weights:
    """rho T² g / |T g| beyond the weights; T is |w| + eta, and 1 for the bias."""
    scales = [np.abs(weights[0]) + ETA, np.abs(weights[1]) + ETA, np.ones_like(weights[2])]
    length = math.sqrt(sum(float(((t * g) ** 2).sum()) for t, g in zip(scales, gradient, strict=True)))
    return [w + RHO * t * t * g / length for w, t, g in zip(weights, scales, gradient, strict=True)]


def slow_step(weights: Weights, images: torch.Tensor, labels: list[int], sure: list[bool]) -> Weights:
    count = len(labels)
    p = probabilities(weights, images)
    everyone = back(weights, images, cross_entropy_slope(p, labels, [True] * count))
    total = everyone
    if any(sure):
        up = slow_up(weights, back(weights, images, cross_entropy_slope(p, labels, sure)))
        moved = probabilities(up, images)
        slope = np.array([(moved[k] - p[k]) / count if sure[k] else 0 * p[k] for k in range(count)])
        total = [a + b for a, b in zip(everyone, back(up, images, slope), strict=True)]
    length = math.sqrt(sum(float((g**2).sum()) for g in total))
    return [w - LR * g * min(1, CLIP / length) for w, g in zip(weights, total, strict=True)]


def test_thresholds_by_hand() -> None:
    rows = torch.tensor([[0.8, 0.2, 0.0], [0.6, 0.4, 0.0], [0.3, 0.7, 0.0], [0.1, 0.45, 0.45]])
    # confidences 0.8, 0.6, 0.7, 0.45: tau 0.6375; shares 0.45, 0.4375, 0.1125
    tau, threshold = adaptive_threshold(rows)
    assert tau.item() == pytest.approx(0.6375)
    assert threshold.tolist() == pytest.approx([0.6375, 0.6375 * 0.4375 / 0.45, 0.6375 * 0.25])
    assert slow_kept(rows.tolist()) == (pytest.approx(0.6375), [0, 2])


def test_the_step_up_by_hand() -> None:
    weights = {"w.weight": torch.tensor([3.0, -1.0]), "w.bias": torch.tensor([5.0])}
    slopes = [torch.tensor([1.0, 0.0]), torch.tensor([3.0])]
    # T = (4, 2) and 1 with eta 1; T g = (4, 0, 3), length 5; up by 0.5 (4 · 4, 0, 3) / 5
    found = ascended(weights, slopes, 0.5, 1.0)
    assert found["w.weight"].tolist() == pytest.approx([4.6, -1.0])
    assert found["w.bias"].tolist() == pytest.approx([5.3])


def drawn(index: list[int]) -> Batch:
    given = batch(0, len(index), seed=21)
    given.u_index = torch.tensor(index)
    return given


@pytest.mark.parametrize("tau", [TAU, 1.0])
def test_a_round_of_a_client(tau: float) -> None:
    method = create("flfl", {"tau": tau, "rho": RHO, "eta": ETA})
    pool = Pool(batch(0, POOL, seed=11).u_weak)
    ctx = context(method, pool=pool, extras={}, batch=2, mu=2, lr=LR, weight_decay=0.0, max_grad_norm=CLIP)
    method.begin_all(ctx)
    teacher = predictions(1, pool.weak)  # the model that the client received
    mean, kept = slow_kept(teacher)
    assert 4 < len(kept) < POOL
    assert (pool.selected, pool.steps) == (kept, len(kept) // 4)

    index = kept[:4]
    given = drawn(index)
    labels = [teacher[i].index(max(teacher[i])) for i in index]
    sure = [max(teacher[i]) >= tau for i in index]
    assert any(sure) == (tau < 1)
    assert not all(sure)
    expected = slow_step(arrays(ctx.model.state_dict()), given.u_strong, labels, sure)
    method.step(given, ctx)
    for found, wanted in zip(arrays(ctx.model.state_dict()), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)

    sent = method.finish_all(ctx)
    assert sent["flfl/tau"].tolist() == pytest.approx([mean])
    assert ctx.decisions[0].mask.tolist() == [i in kept for i in range(POOL)]


def test_clients_weigh_by_what_they_have_to_learn() -> None:
    method = create("flfl")
    for tau, weight in ((0.25, 0.75), (1.0, 1e-6)):
        update = Update(1, 0, 20, {}, {"flfl/tau": torch.tensor([tau])})
        method.receive(update)
        assert method.weight_of(update, 7.0) == pytest.approx(weight)
    with pytest.raises(UpdateRefused, match="mean confidence"):
        method.receive(Update(1, 0, 20, {}, {"flfl/tau": torch.tensor([-3.0])}))


def test_the_server_trains_before_round_1(tmp_path: Path) -> None:
    """As long as pretrain says; statistics of static batch norm are there when clients first use them."""
    given = {"subset": 160, "scenario": "server", "rounds": 1, "model__norm": "static"}
    simulation = prepare(little_config("flfl", **given))

    def start(epochs: int) -> dict[str, torch.Tensor]:
        server, trainer = assemble(
            tmp_path, little_config("flfl", method__pretrain=epochs, **given), simulation
        )
        return server.start(trainer.initial_weights()).weights

    untrained, once, twice = start(0), start(1), start(2)
    assert not same_bits(untrained, once)
    assert not same_bits(once, twice)
    means = [value for name, value in once.items() if name.endswith("running_mean")]
    assert means
    assert all(bool(value.any()) for value in means)
    assert not any(bool(value.any()) for name, value in untrained.items() if name.endswith("running_mean"))


def test_the_perturbed_pass_leaves_statistics_alone(tmp_path: Path) -> None:
    """Running means of batch norm see each image once, at the weights that are trained."""
    given = {"subset": 160, "scenario": "server", "rounds": 1, "method__pretrain": 0}
    simulation = prepare(little_config("flfl", **given))
    state = play(little_config("flfl", method__tau=0.05, **given), simulation, tmp_path)
    still = play(little_config("flfl", method__tau=1.0, **given), simulation, tmp_path)
    tracked = [name for name in state.weights if name.endswith("num_batches_tracked")]
    assert tracked
    assert all(torch.equal(state.weights[name], still.weights[name]) for name in tracked)
    assert not same_bits(state.weights, still.weights)
