"""CBAFed against loops that follow the paper: thresholds by class, runners-up, who weighs what, residuals."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from proxyfl.core.state import Task, Tensors, Update
from proxyfl.methods import create
from proxyfl.methods.cbafed import balanced_labels, class_shares, class_thresholds
from proxyfl.methods.context import ServerContext
from proxyfl.runs.simulation import Simulation
from toybox import Told, assemble, little_config, make_simulation, play, same_bits
from toyclient import CPU, Pool, batch, context, predictions

SHARES = [0.4, 0.35, 0.23, 0.02]


def slow_shares(counts: list[list[float]]) -> list[float]:
    """Of each class among all labels, times a tenth of the classes."""
    classes = len(counts[0])
    sums = [sum(row[c] for row in counts) for c in range(classes)]
    return [value / sum(sums) * classes / 10 for value in sums]


def slow_thresholds(shares: list[float], base: float, highest: float) -> list[float]:
    mean = sum(shares) / len(shares)
    std = math.sqrt(sum((p - mean) ** 2 for p in shares) / (len(shares) - 1))
    return [min(highest, p + base - std) for p in shares]


def slow_label(row: list[float], thresholds: list[float], shares: list[float], rare: float) -> int | None:
    """Its label, or None where it is left out."""
    order = sorted(range(len(row)), key=lambda c: -row[c])
    if row[order[0]] > thresholds[order[0]]:
        return order[0]
    return order[1] if shares[order[1]] < rare else None


def test_thresholds_by_hand() -> None:
    shares = class_shares(torch.tensor([6.0, 2.0]) + torch.tensor([0.0, 2.0]))
    assert shares.tolist() == pytest.approx([0.6 / 5, 0.4 / 5])
    # std of (0.12, 0.08) with n - 1: 0.02 √2 = 0.0282843
    expected = [0.12 + 0.84 - 0.0282843, 0.08 + 0.84 - 0.0282843]
    assert class_thresholds(shares, 0.84, 0.95).tolist() == pytest.approx(expected)
    assert class_thresholds(shares, 0.84, 0.9).tolist() == pytest.approx([0.9, expected[1]])
    assert slow_thresholds([0.12, 0.08], 0.84, 0.95) == pytest.approx(expected)
    assert slow_shares([[6, 2], [0, 2]]) == pytest.approx([0.12, 0.08])


def test_labels_by_hand() -> None:
    rows = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.1, 0.4], [0.1, 0.5, 0.4], [0.5, 0.4, 0.1], [0.0, 0.3, 0.7]])
    shares, thresholds = torch.tensor([0.2, 0.09, 0.01]), torch.tensor([0.8, 0.8, 0.7])
    label, kept = balanced_labels(rows, thresholds, shares, 0.03)
    # sure; runner-up is rare, twice; runner-up is not; on the threshold, not beyond it
    assert kept.tolist() == [True, True, True, False, False]
    assert label.tolist() == [0, 2, 2, 0, 2]
    found = [slow_label(r, thresholds.tolist(), shares.tolist(), 0.03) for r in rows.double().tolist()]
    assert found[:4] == [0, 2, 2, None]


def test_a_round_of_a_client_without_labels() -> None:
    method = create("cbafed", {"base": 0.45, "rare": 0.03, "warmup": 0, "tau": 0.55})
    pool = Pool(batch(0, 20, seed=11).u_weak)
    extras = {"cbafed/shares": torch.tensor(SHARES)}
    ctx = context(method, pool=pool, extras=extras, batch=2, mu=2, epochs=3)
    method.begin_all(ctx)
    thresholds = slow_thresholds(SHARES, 0.45, 0.55)
    named = [slow_label(row, thresholds, SHARES, 0.03) for row in predictions(1, pool.weak)]
    kept = [i for i in range(20) if named[i] is not None]
    assert 4 < len(kept) < 20
    assert any(named[i] == 3 for i in kept)  # a rare runner-up
    assert (pool.selected, pool.steps) == (kept, len(kept) // 4)

    given = batch(0, 4, seed=21)
    given.u_index = torch.tensor(kept[:4])
    given.u_strong = given.u_strong[:0]
    trained = predictions(2, given.u_weak)
    expected = -sum(math.log(trained[k][named[i] or 0]) for k, i in enumerate(kept[:4])) / 4
    method.step(given, ctx)
    assert ctx.losses["unlabelled"].item() == pytest.approx(expected, rel=1e-4)
    sent = method.finish_all(ctx)["cbafed/counts"].tolist()
    assert sent == [float(sum(named[i] == c for i in kept)) for c in range(4)]
    assert method.weight_of(Update(1, 0, 20, {}, {"cbafed/counts": torch.tensor(sent)}), 7.0) == len(kept)


def answers(client: int, **more: Any) -> Update:
    """Of a client in round 2: number 0 has labels, the others have none."""
    given = {"method__warmup": 1, "method__tau": 0.05, "train__mu": 1, **more}
    config = little_config("cbafed", subset=160, scenario="partial", **given)
    _, trainer = assemble("", config, toy(), workers=0)
    weights = trainer.initial_weights()
    task = Task(2, client, weights, {"cbafed/shares": torch.full((10,), 0.1)})
    return trainer.train(task, toy().holdings.client(client))


@functools.cache
def toy() -> Simulation:
    return make_simulation((40, 0, 0, 0), (0, 40, 40, 40))


def test_weights_of_a_labelled_client_are_drawn_back() -> None:
    """With every = 2 after epoch 2, counted from 0: four fifths of those after epoch 0."""
    early = answers(0, train__epochs=1, method__residual_epochs=0).weights
    late = answers(0, train__epochs=3, method__residual_epochs=0).weights
    found = answers(0, train__epochs=3, method__residual_epochs=2).weights
    for name, value in found.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, 0.8 * early[name] + 0.2 * late[name])
    assert not same_bits(found, late)
    counted = answers(0).extras["cbafed/counts"]
    assert counted.tolist() == torch.bincount(toy().holdings.client(0).labels, minlength=10).tolist()


def test_epochs_and_rate_of_clients_without_labels() -> None:
    steps = [answers(1, train__epochs=4, method__unlabelled_epochs=e).metrics["steps"] for e in (0, 1, 3)]
    assert steps == [4 * steps[1], steps[1], 3 * steps[1]]
    still = answers(1, method__unlabelled_lr=0.0).weights
    moved = answers(1).weights
    assert torch.equal(
        still["classifier.weight"], answers(2, method__unlabelled_lr=0.0).weights["classifier.weight"]
    )
    assert not torch.equal(still["classifier.weight"], moved["classifier.weight"])


def test_in_the_warm_up_labelled_clients_train_alone(tmp_path: Path) -> None:
    told = Told()
    given = {"per_round": 4, "rounds": 3, "method__warmup": 2, "method__tau": 0.05}
    play(little_config("cbafed", scenario="partial", **given), toy(), tmp_path, observers=[told])
    assert [report.metrics["clients"] for report in told.reports] == [[0], [0], [0, 1, 2, 3]]
    assert all(report.metrics["failed"] == {} for report in told.reports)
    assert told.reports[1].metrics["pseudo"] == {}
    assert told.reports[2].metrics["pseudo"]["selected"] > 0


def test_the_server_counts_each_client_once() -> None:
    method = create("cbafed", {"residual_rounds": 0})
    counts = {3: [[4.0, 0.0], [1.0, 1.0]], 5: [[0.0, 6.0]]}
    extras = {f"cbafed/{name}": value for name, value in method.start(server(1, {})).items()}
    assert extras["cbafed/shares"].tolist() == pytest.approx([0.1, 0.1])
    ctx = server(1, extras, [3])
    extras |= named(method.serve(ctx, [{"counts": torch.tensor(counts[3][0])}]))
    assert extras["cbafed/shares"].tolist() == pytest.approx(slow_shares([counts[3][0]]))
    ctx = server(2, extras, [5, 3])
    both = [{"counts": torch.tensor(counts[5][0])}, {"counts": torch.tensor(counts[3][1])}]
    extras |= named(method.serve(ctx, both))
    assert extras["cbafed/shares"].tolist() == pytest.approx(slow_shares([counts[5][0], counts[3][1]]))


def test_the_global_model_is_averaged_with_an_older_one() -> None:
    """Every other round with the one kept two rounds ago, which that mean replaces."""
    method = create("cbafed", {"residual_rounds": 2, "warmup": 2})
    found = []
    extras = named(method.start(server(1, {})))
    for round, mean in ((1, 8.0), (3, 4.0), (4, 2.0), (5, 6.0), (6, 10.0)):
        ctx = server(round, extras, [0], mean)
        extras |= named(method.serve(ctx, [{"counts": torch.ones(2)}]))
        found.append(float(ctx.weights["w"]))
    # In round 2, the last of the warm-up, nobody trains: 8 stays and is kept. Round 4: (8 + 2) / 2
    assert found == [8.0, 4.0, 5.0, 6.0, (5 + 10) / 2]


def server(round: int, extras: Tensors, clients: list[int] | None = None, mean: float = 0.0) -> ServerContext:
    weights = {"w": torch.tensor(mean), "steps": torch.tensor(3)}
    return ServerContext(round, 1, 2, CPU, weights, extras, clients=clients or [])


def named(tensors: Tensors) -> Tensors:
    return {f"cbafed/{name}": value for name, value in tensors.items()}
