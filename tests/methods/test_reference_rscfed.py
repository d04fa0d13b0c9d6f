"""RSCFed against loops that follow the paper: subsets, distances, the teacher and what it teaches."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from proxyfl.core.errors import UpdateRefused
from proxyfl.core.state import Tensors, Update, size_in_bytes
from proxyfl.methods import create
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext
from proxyfl.methods.rscfed import draw_subsets, sharpen
from proxyfl.runs.simulation import Simulation
from toybox import Told, little_config, make_simulation, play, same_bits
from toyclient import CPU, Pool, Toy, arrays, batch, context, logits_of, predictions, softmax

TENSORS = [
    {"a": [1.0, 0.0], "b": [2.0]},
    {"a": [0.0, 1.0], "b": [0.0]},
    {"a": [3.0, 4.0], "b": [1.0]},
]
SAMPLES, LABELLED = [30, 20, 10], [True, False, False]
NEAR, FAR, TIMES = 5.0, 8.0, 6.0


def slow_subset(members: list[int], twice: bool = False) -> dict[int, float]:
    """The weight of each client in one subset."""
    base = {k: SAMPLES[k] * (TIMES if LABELLED[k] else 1.0) for k in members}
    centre = {
        name: [sum(base[k] * TENSORS[k][name][j] for k in members) / sum(base.values()) for j in range(size)]
        for name, size in (("a", 2), ("b", 1))
    }
    scale = NEAR if any(LABELLED[k] for k in members) else FAR
    found = {}
    for k in members:
        distance = 0.0
        for name, middle in centre.items():
            distance += math.sqrt(sum((x - m) ** 2 for x, m in zip(TENSORS[k][name], middle, strict=True)))
        found[k] = base[k] * math.exp(-scale * distance / SAMPLES[k])
        if twice and LABELLED[k]:
            found[k] *= TIMES
    return {k: value / sum(found.values()) for k, value in found.items()}


@pytest.mark.parametrize("twice", [False, True])
def test_weights_of_the_mean(twice: bool) -> None:
    given = {"subsets": 8, "subset_size": 2, "scale": NEAR, "scale_unlabelled": FAR, "twice": twice}
    found = weights(create("rscfed", given), range(3))
    subsets = draw_subsets(3, 8, 2, server(7).rng("subsets"))
    assert {frozenset(each) for each in subsets} >= {frozenset({1, 2})}  # one without a labelled client
    expected = [sum(slow_subset(each, twice).get(k, 0.0) for each in subsets) / 8 for k in range(3)]
    assert found == pytest.approx(expected)


def test_a_client_that_trains_once_counts_in_each_of_its_subsets() -> None:
    given = {"subsets": 8, "subset_size": 2, "scale": NEAR, "scale_unlabelled": FAR}
    each, once = (create("rscfed", {**given, "once": once}) for once in (False, True))
    assert weights(once, range(3)) == pytest.approx(weights(each, range(3)))
    assert [method.most_trainings for method in (each, once)] == [8, 1]
    assert once.trainings(server(7), [4, 5, 6]) == [1, 1, 1]


def test_who_fails_is_missing_from_its_subsets() -> None:
    given = {"subsets": 8, "subset_size": 2, "scale": NEAR, "scale_unlabelled": FAR}
    found = weights(create("rscfed", given), (0, 2))
    subsets = [[k for k in each if k != 1] for each in draw_subsets(3, 8, 2, server(7).rng("subsets"))]
    expected = [sum(slow_subset(each).get(k, 0.0) for each in subsets) / 8 for k in (0, 2)]
    assert found == pytest.approx([expected[0], 0, expected[1]])


def weights(method: Method, answered: Iterable[int]) -> list[float]:
    """Of each client, over all its trainings, which here end with the same weights."""
    ctx, clients = server(7), [4, 5, 6]
    times = method.trainings(ctx, clients)
    places = [k for k in answered for _ in range(times[k])]
    ctx.clients, ctx.samples = [clients[k] for k in places], [SAMPLES[k] for k in places]
    ctx.updates = [
        {name: torch.tensor(value) for name, value in TENSORS[k].items()} | {"steps": torch.tensor(7 * k)}
        for k in places
    ]
    found = method.weights(ctx, [{"labelled": torch.tensor([float(LABELLED[k])])} for k in places])
    assert sum(found) == pytest.approx(1)
    return [sum(share for k, share in zip(places, found, strict=True) if k == client) for client in range(3)]


def server(round: int) -> ServerContext:
    return ServerContext(round, 1, 2, CPU, {}, {})


def test_far_clients_do_not_underflow() -> None:
    """exp(-s d / n) is zero in any float for all of them; the nearest takes it all."""
    method = create("rscfed", {"scale": 1e6, "subset_size": 3})
    assert weights(method, range(3)) == pytest.approx([1.0, 0.0, 0.0])


def test_subsets() -> None:
    """So many clients each, none twice; other rounds draw others; small rounds take all."""
    ctx = server(1)
    subsets = draw_subsets(8, 3, 5, ctx.rng("subsets"))
    assert [len(set(each)) for each in subsets] == [5, 5, 5]
    assert subsets == draw_subsets(8, 3, 5, ctx.rng("subsets"))
    assert subsets != draw_subsets(8, 3, 5, server(2).rng("subsets"))
    assert [sorted(each) for each in draw_subsets(2, 3, 5, ctx.rng("subsets"))] == [[0, 1]] * 3


def test_sharpening_by_hand() -> None:
    # squares of 0.5, 0.3, 0.2 are 0.25, 0.09, 0.04, together 0.38
    found = sharpen(torch.tensor([[0.5, 0.3, 0.2]]), 0.5)
    assert found.tolist()[0] == pytest.approx([0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38])


def slow_loss(student: list[list[float]], teacher: list[list[float]], size: int) -> float:
    total = 0.0
    for p, t in zip(student, teacher, strict=True):
        powers = [value**2 for value in t]
        total += sum((a - b / sum(powers)) ** 2 for a, b in zip(p, powers, strict=True))
    return 0.02 * total / size


def test_steps_of_a_client_without_labels() -> None:
    """The teacher starts as received and follows the student; what it kept is where it goes on next time."""
    method = create("rscfed", {"warmup": 0, "temperature": 0.5, "keep": 0.6})
    pool = Pool(batch(0, 6, seed=11).u_weak)
    ctx = context(method, pool=pool, extras={}, batch=2, mu=3, lr=0.5)
    method.begin_all(ctx)
    assert (pool.selected, pool.steps) == (None, 1)
    given = batch(0, 6, seed=21)
    given.u_strong = given.u_strong[:0]
    expected = slow_loss(predictions(2, given.u_weak), predictions(1, pool.weak), 6)
    mine = arrays(Toy(1).state_dict())
    for step, keep in enumerate((0.0, 0.5, 0.6)):  # min(1 - 1 / (step + 1), 0.6)
        before = ctx.losses.get("unlabelled", torch.zeros(()))
        outputs = method.step(given, ctx)
        method.observe_all(outputs, ctx)
        told = (ctx.losses["unlabelled"] - before).item()
        if step == 0:
            assert told == pytest.approx(expected, rel=1e-4)
        student = arrays(ctx.model.state_dict())
        mine = [keep * t + (1 - keep) * s for t, s in zip(mine, student, strict=True)]
    method.finish_all(ctx)
    for found, wanted in zip(teacher_in(ctx.state), mine, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert int(ctx.state["steps"]) == 3

    again = context(method, pool=Pool(pool.weak), extras={}, batch=2, mu=3, state=ctx.state, round=2)
    method.begin_all(again)
    seen = method.step(given, again)
    rows = softmax(logits_of(mine, pool.weak)).tolist()
    expected = slow_loss(predictions(2, given.u_weak), rows, 6)
    assert again.losses["unlabelled"].item() == pytest.approx(expected, rel=1e-4)
    method.observe_all(seen, again)
    method.finish_all(again)
    assert int(again.state["steps"]) == 4


def teacher_in(state: Tensors) -> list[np.ndarray]:
    return arrays({name.removeprefix("teacher/"): value for name, value in state.items()})


def test_the_loss_is_divided_by_a_whole_batch() -> None:
    method = create("rscfed", {"warmup": 0})
    pool = Pool(batch(0, 3, seed=11).u_weak)
    ctx = context(method, pool=pool, extras={}, batch=5, mu=2)
    method.begin_all(ctx)
    given = batch(0, 3, seed=21)
    given.u_strong = given.u_strong[:0]
    method.step(given, ctx)
    expected = slow_loss(predictions(2, given.u_weak), predictions(1, pool.weak), 10)
    assert ctx.losses["unlabelled"].item() == pytest.approx(expected, rel=1e-4)


@functools.cache
def toy() -> Simulation:
    return make_simulation((40, 0, 0, 0), (0, 40, 40, 40))


def test_rounds_with_a_warm_up(tmp_path: Path) -> None:
    told = Told()
    given = {"per_round": 4, "rounds": 3, "method__warmup": 1, "method__subset_size": 2}
    play(little_config("rscfed", scenario="partial", **given), toy(), tmp_path, observers=[told])
    first, *later = (report.metrics for report in told.reports)
    assert (first["clients"], first["idle"]) == ([0], [1, 2, 3])
    size = told.reports[0].state.weights
    for metrics in later:
        drawn = draw_subsets(4, 3, 2, server(metrics["round"]).rng("subsets"))
        trained = sorted(k for members in drawn for k in members)
        assert metrics["clients"] == sorted(set(trained))
        assert len(set(trained)) < len(trained)
        assert metrics["idle"] == [k for k in range(4) if k not in trained]
        assert len(metrics["client_weights"]) == 6
        assert sum(metrics["client_weights"]) == pytest.approx(1)
        assert metrics["traffic"]["bytes_up"] == 6 * size_in_bytes(size) + 4 * len(set(trained))
    assert all(report.metrics["failed"] == {} for report in told.reports)
    assert told.reports[2].metrics["pseudo"]["selected_share"] == 1
    assert not same_bits(told.reports[1].state.weights, told.reports[2].state.weights)


def test_who_sits_out_and_who_lies() -> None:
    method = create("rscfed", {"warmup": 2})
    for labelled, round, weight in ((0.0, 2, 0.0), (1.0, 2, 7.0), (0.0, 3, 7.0)):
        update = Update(round, 0, 20, {}, {"rscfed/labelled": torch.tensor([labelled])})
        assert method.weight_of(update, 7.0) == weight
    with pytest.raises(UpdateRefused, match="has labels"):
        method.receive(Update(1, 0, 20, {}, {"rscfed/labelled": torch.tensor([0.5])}))
