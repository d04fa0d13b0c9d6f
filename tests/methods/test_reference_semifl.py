"""SemiFL against loops that follow the paper: labels once a round, fix and mix, who sits out, the server."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from proxyfl.core.rng import numpy_rng, rng
from proxyfl.core.state import Update
from proxyfl.methods import create
from proxyfl.methods.semifl import mixed_cross_entropy
from proxyfl.runs.simulation import prepare
from toybox import Told, little_config, play, same_bits
from toyclient import Pool, batch, context, predictions

TAU, POOL = 0.4, 20


def slow_mixed(rows: list[list[float]], first: list[int], second: list[int], share: float) -> float:
    total = 0.0
    for row, a, b in zip(rows, first, second, strict=True):
        total += -share * math.log(row[a]) - (1 - share) * math.log(row[b])
    return total / len(rows)


def test_mixed_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    # rows are (1/2, 1/2) and (3/4, 1/4)
    expected = (math.log(2) + 0.25 * math.log(4 / 3) + 0.75 * math.log(4)) / 2
    found = mixed_cross_entropy(logits, torch.tensor([0, 0]), torch.tensor([1, 1]), 0.25)
    assert found.item() == pytest.approx(expected)
    rows = logits.softmax(1).tolist()
    assert slow_mixed(rows, [0, 0], [1, 1], 0.25) == pytest.approx(expected)


def test_a_round_of_a_client() -> None:
    method = create("semifl", {"tau": TAU, "mix": 2.0})
    pool = Pool(batch(0, POOL, seed=11).u_weak)
    ctx = context(method, pool=pool, extras={}, batch=2, mu=2)
    method.begin_all(ctx)
    teacher = predictions(1, pool.weak)  # the model that the client received
    labels = [row.index(max(row)) for row in teacher]
    fix = [i for i in range(POOL) if max(teacher[i]) >= TAU]
    assert 4 < len(fix) < POOL
    assert pool.selected == fix
    assert pool.steps == len(fix) // 4

    index = fix[:4]
    given = batch(0, 4, seed=21)
    given.u_index = torch.tensor(index)
    drawn = torch.randint(POOL, (4,), generator=rng(1, 1, 0, "mix set")).tolist()
    share = float(numpy_rng(1, 1, 0, "mix").beta(0.75, 0.75))
    assert any(i not in fix for i in drawn)  # unsure images are mixed in, too
    mixed = share * given.u_weak + (1 - share) * pool.weak[drawn]
    strong = predictions(2, given.u_strong)
    fixed = -sum(math.log(strong[k][labels[index[k]]]) for k in range(4)) / 4
    both = slow_mixed(predictions(2, mixed), [labels[i] for i in index], [labels[i] for i in drawn], share)
    method.step(given, ctx)
    assert ctx.losses["unlabelled"].item() == pytest.approx(fixed, rel=1e-4)
    assert ctx.losses["mix"].item() == pytest.approx(2 * both, rel=1e-4)

    sent = method.finish_all(ctx)
    assert sent["semifl/fix"].tolist() == [len(fix)]
    assert ctx.decisions[0].mask.tolist() == [i in fix for i in range(POOL)]


def test_who_has_nothing_to_fix_sits_out() -> None:
    method = create("semifl", {"tau": 1.0, "strict": True})
    pool = Pool(batch(0, POOL, seed=11).u_weak)
    ctx = context(method, pool=pool, extras={})
    method.begin_all(ctx)
    assert (pool.selected, pool.steps) == ([], 0)
    for count, weight in ((0.0, 0.0), (3.0, 7.0)):
        update = Update(1, 0, 20, {}, {"semifl/fix": torch.tensor([count])})
        assert method.weight_of(update, 7.0) == weight


def test_if_all_sit_out_the_server_trains_alone(tmp_path: Path) -> None:
    given = {"subset": 160, "scenario": "server", "rounds": 1}
    config = little_config("semifl", method__tau=1.0, method__strict=True, **given)
    simulation, told = prepare(config), Told()
    ours = play(config, simulation, tmp_path, observers=[told])
    alone = play(little_config("server-only", **given), simulation, tmp_path)
    assert same_bits(ours.weights, alone.weights)
    metrics = told.reports[0].metrics
    assert (metrics["clients"], len(metrics["idle"]), metrics["failed"]) == ([], 2, {})
    assert metrics["pseudo"]["selected"] == 0
    longer = little_config("semifl", method__tau=1.0, method__strict=True, method__server_epochs=2, **given)
    more = play(longer, simulation, tmp_path)
    assert not same_bits(ours.weights, more.weights)
