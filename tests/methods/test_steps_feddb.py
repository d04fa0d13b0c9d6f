"""FedDB as a method: a client's round and the server's mean, against slow loops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from proxyfl.core.state import Update
from proxyfl.methods import create
from proxyfl.methods.context import ServerContext
from toybox import Told, assemble, little_config, make_simulation, play
from toyclient import CLASSES, Pool, batch, context, predictions, step

TAU, POOL = 0.6, 20
SIZES = (10, 6), (60, 10)


def drawn_pool(seed: int = 11) -> Pool:
    return Pool(batch(0, POOL, seed=seed).u_weak)


def slow_begin(weak: Tensor) -> tuple[list[float], list[int], list[bool]]:
    """Average prediction of the received model over the pool; label and mask of each image."""
    rows = predictions(1, weak)
    average = [max(sum(row[c] for row in rows) / len(rows), 1e-6) for c in range(CLASSES)]
    labels, mask = [], []
    for row in rows:
        scaled = [p / a for p, a in zip(row, average, strict=True)]
        debiased = [s / sum(scaled) for s in scaled]
        labels.append(debiased.index(max(debiased)))
        mask.append(max(debiased) >= TAU)
    return average, labels, mask


@pytest.mark.parametrize("over", ["selected", "batch"])
def test_a_round_of_a_client(over: str) -> None:
    method = create("feddb", {"tau": TAU, "over": over, "momentum": 0.3, "weight": 3.0})
    pool = drawn_pool()
    ctx = context(method, pool=pool, extras={})
    method.begin_all(ctx)
    average, labels, mask = slow_begin(pool.weak)
    raw = predictions(1, pool.weak)
    assert mask != [max(row) >= TAU for row in raw]  # the division matters here
    assert labels != [row.index(max(row)) for row in raw]
    assert ctx.memory["average"].tolist() == pytest.approx(average, rel=1e-5)
    chosen = [i for i in range(POOL) if mask[i]]
    assert pool.selected == (chosen if over == "selected" else None)

    for seed, index in ((21, [0, 5, 9, 13, 2, 7, 19, 3]), (22, [1, 4, 6, 8, 10, 11, 12, 14])):
        given = batch(3, len(index), seed=seed)
        given.u_index = torch.tensor(index)
        outputs = step(ctx, given)
        assert outputs.pseudo is not None
        assert outputs.pseudo.label.tolist() == [labels[i] for i in index]
        assert outputs.pseudo.mask.tolist() == [mask[i] for i in index]
        here = [k for k, i in enumerate(index) if mask[i]]
        assert 0 < len(here) < len(index)
        strong, local = predictions(2, given.u_strong), predictions(2, given.u_weak)
        terms = [-math.log(strong[k][labels[index[k]]]) for k in here]
        expected = 3 * sum(terms) / (len(terms) if over == "selected" else len(index))
        assert method.losses(outputs, ctx)["unlabelled"].item() == pytest.approx(expected, rel=1e-4)
        means = [sum(local[k][c] for k in here) / len(here) for c in range(CLASSES)]
        average = [0.3 * a + 0.7 * m for a, m in zip(average, means, strict=True)]
    sent = method.finish_all(ctx)
    assert sent.keys() == {"feddb/average"}
    assert sent["feddb/average"].tolist() == pytest.approx(average, rel=1e-5)


def test_an_addon_that_learns_from_all_images_keeps_the_pool_whole() -> None:
    method = create("feddb+icpl", {"tau": TAU})
    pool = drawn_pool()
    method.begin_all(context(method, pool=pool))
    assert pool.selected is None


def slow_release(averages: list[list[float]], steps: int) -> list[float]:
    classes = len(averages[0])
    w = [1 / len(averages)] * len(averages)
    for _ in range(steps):
        mixed = [sum(w[k] * a[c] for k, a in enumerate(averages)) for c in range(classes)]
        errors = [2 / classes * (total - 1 / classes) for total in mixed]
        slopes = [sum(e * p for e, p in zip(errors, a, strict=True)) for a in averages]
        w = [math.exp(x - 1.9 * (g + 0.9 * x)) for x, g in zip(w, slopes, strict=True)]
        w = [x / sum(w) for x in w]
    return w


def slow_pair(averages: list[list[float]]) -> list[float]:
    """The best mixture of two: the minimum of a parabola, within [0, 1]."""
    (a, b), classes, ridge = averages, len(averages[0]), 1e-6
    apart = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / classes
    slope = sum((x - y) * (1 / classes - y) for x, y in zip(a, b, strict=True)) / classes
    share = min(max((slope + ridge) / (apart + 2 * ridge), 0.0), 1.0)
    return [share, 1 - share]


def two_clients(folder: Path, rounds: int, **options: Any) -> Told:
    """Rounds of two clients of very different size."""
    told = Told()
    settings = {f"method__{name}": value for name, value in options.items()}
    config = little_config(
        "feddb", clients=2, per_round=2, rounds=rounds, train__lr=0.5, method__tau=0.2, **settings
    )
    play(config, make_simulation(*SIZES), folder, observers=[told])
    return told


def updates(told: Told, round: int) -> list[Update]:
    return [answer for kind, answer in told.calls if kind == "answered" and answer.round == round]


def mean_of(answers: list[Update], weights: list[float]) -> dict[str, Tensor]:
    pairs = list(zip(answers, weights, strict=True))
    return {
        name: sum((w * u.weights[name].double() for u, w in pairs), torch.zeros(()))
        for name, value in answers[0].weights.items()
        if value.is_floating_point()
    }


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("solver", ["release", "simplex_qp"])
def test_the_mean_has_the_weights_that_balance_predictions(solver: str, tmp_path: Path) -> None:
    told = two_clients(tmp_path, 1, solver=solver, solver_steps=3)
    answers = updates(told, 1)
    averages = [update.extras["feddb/average"].tolist() for update in answers]
    weights = slow_release(averages, 3) if solver == "release" else slow_pair(averages)
    assert told.reports[0].metrics["client_weights"] == pytest.approx(weights, abs=1e-4)
    assert_close(told.reports[0].state.weights, mean_of(answers, weights))
    sizes = [update.samples / 86 for update in answers]
    assert weights != pytest.approx(sizes, abs=0.1)  # what an ordinary mean would give


def first_weights(folder: Path) -> dict[str, Tensor]:
    """What those rounds begin with."""
    config = little_config("feddb", clients=2, per_round=2)
    _, trainer = assemble(folder, config, make_simulation(*SIZES), workers=0)
    return {name: value.double() for name, value in trainer.initial_weights().items()}


def test_momentum_of_the_server(tmp_path: Path) -> None:
    told = two_clients(tmp_path, 3, server_momentum=0.5)
    before = first_weights(tmp_path)
    velocity = dict.fromkeys(before, torch.zeros(()))
    for report in told.reports:
        mean = mean_of(updates(told, report.state.round), report.metrics["client_weights"])
        velocity = {name: 0.5 * velocity[name] + mean[name] - before[name] for name in mean}
        assert_close(report.state.weights, {name: before[name] + velocity[name] for name in mean})
        before = {name: value.double() for name, value in report.state.weights.items()}


def test_momentum_does_not_carry_a_variance_below_zero() -> None:
    method = create("feddb", {"server_momentum": 0.5})
    names = ("norm.running_var", "norm.running_mean")
    new, old, velocity = ({name: torch.tensor([value]) for name in names} for value in (0.2, 0.3, -0.7))
    kept = {f"feddb/_velocity/{name}": value for name, value in velocity.items()}
    ctx = ServerContext(2, 1, CLASSES, torch.device("cpu"), new, kept)
    ctx.previous = old
    method.serve(ctx, [])
    assert ctx.weights["norm.running_var"].item() == 0
    assert ctx.weights["norm.running_mean"].item() == pytest.approx(0.3 - 0.35 - 0.1)
