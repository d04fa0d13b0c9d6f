"""FedDB's debiasing and both of its weight solvers, against loops and an exhaustive search."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import feddb

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(3)]


def slow_debias(p: list[float], average: list[float]) -> list[float]:
    ratios = [x / max(a, 1e-6) for x, a in zip(p, average, strict=True)]
    return [ratio / sum(ratios) for ratio in ratios]


def slow_release(averages: list[list[float]], steps: int) -> list[float]:
    """Every step: the gradient of the mean squared error plus 0.9 w, 1.9 times at rate 1, then softmax."""
    clients, classes = len(averages), len(averages[0])
    w = [1 / clients] * clients
    for _ in range(steps):
        mixture = [sum(w[k] * averages[k][c] for k in range(clients)) for c in range(classes)]
        stepped = []
        for k in range(clients):
            slope = sum(2 * (mixture[c] - 1 / classes) * averages[k][c] for c in range(classes)) / classes
            decayed = slope + 0.9 * w[k]
            stepped.append(w[k] - 1.0 * (decayed + 0.9 * decayed))
        powers = [math.exp(x) for x in stepped]
        w = [power / sum(powers) for power in powers]
    return w


def release_by_optimiser(averages: Tensor, steps: int) -> Tensor:
    """The same procedure in the words it was described in: an optimiser made anew for every step."""
    w = torch.full((len(averages),), 1 / len(averages), dtype=averages.dtype)
    for _ in range(steps):
        w = w.detach().requires_grad_()
        optimiser = torch.optim.SGD([w], lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.9)
        ((w @ averages - 1 / averages.shape[1]) ** 2).mean().backward()
        optimiser.step()
        w = w.detach().softmax(0)
    return w


def misfit(w: np.ndarray, averages: np.ndarray, ridge: float) -> float:
    clients, classes = averages.shape
    gap = sum(w[k] * averages[k] for k in range(clients)) - 1 / classes
    return float((gap**2).sum() / classes + ridge * ((w - 1 / clients) ** 2).sum())


def exhaustive_weights(averages: np.ndarray, ridge: float) -> np.ndarray:
    """Tries every set of clients that may share: the stationary point, if all its shares are positive."""
    clients, classes = averages.shape
    best, least = np.full(clients, 1 / clients), math.inf
    quadratic = 2 * averages @ averages.T / classes + 2 * ridge * np.eye(clients)
    linear = 2 * averages.sum(1) / classes**2 + 2 * ridge / clients
    for size in range(1, clients + 1):
        for chosen in itertools.combinations(range(clients), size):
            held = list(chosen)
            system = np.ones((size + 1, size + 1))
            system[:size, :size] = quadratic[np.ix_(held, held)]
            system[size, size] = 0
            shares = np.linalg.solve(system, np.append(linear[held], 1.0))[:size]
            if (shares < -1e-12).any():
                continue
            w = np.zeros(clients)
            w[held] = shares
            value = misfit(w, averages, ridge)
            if value < least:
                best, least = w, value
    return best


def draw(seed: int, rows: int, classes: int, spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(classes, spread), size=rows)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_debias(seed: int, classes: int) -> None:
    p, average = draw(seed, 40, classes, 0.3), draw(seed + 100, 1, classes, 0.3)[0]
    average[seed % classes] = 0.0
    found = feddb.debias(torch.from_numpy(p), torch.from_numpy(average))
    assert found.shape == (40, classes)
    for i in range(40):
        expected = slow_debias(p[i].tolist(), average.tolist())
        assert found[i].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)
    single = feddb.debias(torch.from_numpy(p).float(), torch.from_numpy(average).float())
    for i in range(40):
        expected = slow_debias(p[i].tolist(), average.tolist())
        assert single[i].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_debias_of_literal_rows(dtype: torch.dtype) -> None:
    average = torch.tensor([0.5, 0.3, 0.2], dtype=dtype)
    p = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2], [0.4, 0.3, 0.3], [0.0, 0.0, 1.0]], dtype=dtype)
    # ratios (1, 1, 1), (1.2, 2/3, 1), (0.8, 1, 1.5), (0, 0, 5)
    expected = [1 / 3, 1 / 3, 1 / 3, 0.418605, 0.232558, 0.348837, 0.242424, 0.303030, 0.454545, 0, 0, 1]
    assert feddb.debias(p, average).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_debias_by_an_average_that_never_saw_a_class() -> None:
    # ratios 0.9 / 1 and 0.1 / 0.000001
    found = feddb.debias(rows([0.9, 0.1], [1.0, 0.0]), torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx([0.9 / 100000.9, 100000 / 100000.9], rel=1e-9)
    assert found[1].tolist() == [1.0, 0.0]
    # a ratio by the floor itself: 1e-6 / 1e-6 against 1 / 1
    found = feddb.debias(rows([1.0, 1e-6]), torch.tensor([1.0, 1e-9], dtype=torch.float64))
    assert found[0].tolist() == pytest.approx([0.5, 0.5], rel=1e-6)


def test_debias_of_no_images() -> None:
    assert feddb.debias(torch.zeros(0, 3), torch.full((3,), 1 / 3)).shape == (0, 3)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_average_update(seed: int, classes: int, momentum: float) -> None:
    batch, average = draw(seed, 30, classes), draw(seed + 100, 1, classes)[0]
    found = feddb.average_update(torch.from_numpy(average), torch.from_numpy(batch), momentum=momentum)
    for c in range(classes):
        mean = sum(batch[i][c] for i in range(30)) / 30
        expected = momentum * average[c] + (1 - momentum) * mean
        assert found[c].item() == pytest.approx(expected, rel=1e-9)


def test_average_update_of_literal_numbers() -> None:
    average = torch.tensor([0.6, 0.3, 0.1])
    batch = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.8, 0.2]])  # mean (0.5, 0.4, 0.1)
    assert feddb.average_update(average, batch).tolist() == pytest.approx([0.55, 0.35, 0.1], abs=1e-7)
    assert feddb.average_update(average, batch, momentum=0.9).tolist() == pytest.approx(
        [0.59, 0.31, 0.1], abs=1e-7
    )
    assert average.tolist() == pytest.approx([0.6, 0.3, 0.1])


def test_a_batch_of_nothing_leaves_the_average() -> None:
    average = torch.tensor([0.6, 0.3, 0.1])
    assert feddb.average_update(average, torch.zeros(0, 3)).tolist() == pytest.approx([0.6, 0.3, 0.1])


@pytest.mark.parametrize("steps", [0, 1, 2, 100])
@pytest.mark.parametrize("clients", [1, 2, 8])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_release_weights(seed: int, classes: int, clients: int, steps: int) -> None:
    averages = draw(seed, clients, classes, 0.3)
    found = feddb.release_weights(torch.from_numpy(averages), steps=steps)
    assert found.shape == (clients,)
    expected = slow_release(averages.tolist(), steps)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_release_weights_against_a_real_optimiser(seed: int) -> None:
    averages = torch.from_numpy(draw(seed, 8, 10, 0.3))
    expected = release_by_optimiser(averages, 20).tolist()
    assert slow_release(averages.tolist(), 20) == pytest.approx(expected, rel=1e-9)
    assert feddb.release_weights(averages, steps=20).tolist() == pytest.approx(expected, rel=1e-6)


def test_release_weights_of_literal_numbers() -> None:
    # from (1/2, 1/2) the mixture is (0.7, 0.3): slopes 0.12 and 0.04; -0.355 - 1.9 slope: -0.583 and -0.431
    averages = rows([0.8, 0.2], [0.6, 0.4])
    assert feddb.release_weights(averages, steps=1).tolist() == pytest.approx([0.462073, 0.537927], abs=1e-6)
    # from there the mixture is (0.692415, 0.307585): slopes 0.115449 and 0.038483; -0.547425 and -0.455046
    assert feddb.release_weights(averages, steps=2).tolist() == pytest.approx([0.476922, 0.523078], abs=1e-6)


def test_a_hundred_release_steps_are_the_default() -> None:
    averages = torch.from_numpy(draw(0, 5, 3, 0.3))
    expected = slow_release(averages.tolist(), 100)
    assert feddb.release_weights(averages).tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_simplex_weights(seed: int, classes: int, spread: float, clients: int) -> None:
    averages = draw(seed, clients, classes, spread)
    found = feddb.simplex_weights(torch.from_numpy(averages)).double().numpy()
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1.0, abs=1e-6)
    expected = exhaustive_weights(averages, 1e-6)
    assert misfit(found, averages, 1e-6) <= misfit(expected, averages, 1e-6) + 1e-12
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_simplex_weights_against_a_general_solver(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    averages = draw(seed, 12, 10, 0.5)
    found = feddb.simplex_weights(torch.from_numpy(averages), ridge=1e-3).double().numpy()
    answer = optimize.minimize(
        lambda w: 1e4 * misfit(w, averages, 1e-3), np.full(12, 1 / 12), method="SLSQP", bounds=[(0, 1)] * 12,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"maxiter": 1000, "ftol": 1e-14},
    )  # fmt: skip
    assert answer.success
    assert misfit(found, averages, 1e-3) <= misfit(answer.x, averages, 1e-3) + 1e-9
    assert found.tolist() == pytest.approx(answer.x.tolist(), abs=1e-4)


@pytest.mark.parametrize(
    ("averages", "expected"),
    [
        # 0.8 w + 0.4 (1 - w) = 0.5
        ([[0.8, 0.2], [0.4, 0.6]], [0.25, 0.75]),
        # nothing balances the first class: all on the client that has least of it
        ([[0.9, 0.1], [0.6, 0.4]], [0.0, 1.0]),
        ([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]], [0.0, 1.0, 0.0]),
        # many mixtures are balanced: the one nearest to uniform, shares 7 : 8 : 11
        ([[0.9, 0.1], [0.7, 0.3], [0.1, 0.9]], [0.269231, 0.307692, 0.423077]),
        ([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [1 / 3, 1 / 3, 1 / 3]),
        ([[0.7, 0.2, 0.1]] * 4, [0.25] * 4),
        ([[0.7, 0.2, 0.1]], [1.0]),
        # three one-sided clients, each of another class, and a fourth that doubles the first
        ([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 0, 0]], [1 / 6, 1 / 3, 1 / 3, 1 / 6]),
    ],
)
def test_simplex_weights_of_literal_numbers(averages: list[list[float]], expected: list[float]) -> None:
    assert feddb.simplex_weights(rows(*averages)).tolist() == pytest.approx(expected, abs=1e-4)


def test_a_heavy_ridge_makes_the_weights_uniform() -> None:
    averages = rows([0.8, 0.2], [0.4, 0.6])
    assert feddb.simplex_weights(averages, ridge=1e4).tolist() == pytest.approx([0.5, 0.5], abs=1e-4)
    # slope 0.32 w - 0.08 + 4 ridge (w - 0.5) = 0 at ridge 0.08: w = 0.24 / 0.64
    assert feddb.simplex_weights(averages, ridge=0.08).tolist() == pytest.approx([0.375, 0.625], abs=1e-5)
