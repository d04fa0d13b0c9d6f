"""FedLoKe's blend, entropy mask and ramp, against loops written from the equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import fedloke

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_entropy(q: list[float]) -> float:
    return -sum(x * math.log(x) for x in q if x > 0)


def slow_taught(teacher: list[list[float]], student: list[list[float]], delta: float) -> float:
    """The mean over every row; a row whose teacher hesitates adds nothing."""
    total = 0.0
    for q, logits in zip(teacher, student, strict=True):
        if slow_entropy(q) < delta:
            top = max(logits)
            norm = top + math.log(sum(math.exp(g - top) for g in logits))
            total += sum(x * (math.log(x) - g + norm) for x, g in zip(q, logits, strict=True) if x > 0)
    return total / len(teacher) if teacher else 0.0


def draw(seed: int, rows: int, classes: int) -> Tensor:
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 8.0, 60.0, 2000.0], size=(rows, 1))
    return torch.from_numpy(scale * rng.normal(size=(rows, classes))).softmax(1)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def weights(seed: int, counter: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "conv.weight": torch.from_numpy(rng.normal(size=(2, 1, 3, 3))),
        "bn.running_var": torch.from_numpy(rng.uniform(size=2)).float(),
        "bn.num_batches_tracked": torch.tensor(counter),
        "classifier.bias": torch.from_numpy(rng.normal(size=3)).float(),
    }


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_blend(seed: int, keep: float) -> None:
    private, shared = weights(seed, 11), weights(seed + 100, 42)
    found = fedloke.blend(private, shared, keep)
    assert list(found) == list(private)
    for name, value in found.items():
        assert value.shape == private[name].shape
        assert value.dtype == private[name].dtype
        if value.is_floating_point():
            mine, theirs = private[name].flatten().tolist(), shared[name].flatten().tolist()
            expected = [keep * a + (1 - keep) * b for a, b in zip(mine, theirs, strict=True)]
            assert value.flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert found["bn.num_batches_tracked"].item() == 42


def test_blend_of_literal_numbers_leaves_both_models_alone() -> None:
    private = {"w": torch.tensor([1.0, -2.0, 0.0]), "n": torch.tensor(3)}
    shared = {"w": torch.tensor([0.0, 8.0, 10.0]), "n": torch.tensor(7)}
    found = fedloke.blend(private, shared, 0.9)
    assert found["w"].tolist() == pytest.approx([0.9, -1.0, 1.0], abs=1e-6)
    assert found["n"].item() == 7
    assert private["w"].tolist() == [1.0, -2.0, 0.0]
    assert shared["w"].tolist() == [0.0, 8.0, 10.0]
    assert private["n"].item() == 3


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_entropy(seed: int, classes: int) -> None:
    q = draw(seed, 40, classes)
    expected = [slow_entropy(row) for row in q.tolist()]
    found = fedloke.entropy(q)
    assert found.shape == (40,)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)
    assert fedloke.entropy(q.float()).tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_of_literal_rows_in_nats(dtype: torch.dtype) -> None:
    q = torch.tensor([[1, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0.98, 0.01, 0.01]], dtype=dtype)
    expected = [0.0, 0.693147, 1.098612, 0.111902]
    assert fedloke.entropy(q).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("delta", [0.1, 0.7])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_taught(seed: int, classes: int, delta: float) -> None:
    q = draw(seed, 40, classes)
    student = torch.from_numpy(4 * np.random.default_rng(seed + 100).normal(size=(40, classes)))
    expected = slow_taught(q.tolist(), student.tolist(), delta)
    assert expected > 0
    assert fedloke.taught(q, student, delta).item() == pytest.approx(expected, rel=1e-8)
    assert fedloke.taught(q.float(), student.float(), delta).item() == pytest.approx(expected, rel=1e-4)


# softmax of the student: (1/2, 1/4, 1/4), (1/4, 1/2, 1/4), (1/3, 1/3, 1/3), (1/3, 1/3, 1/3)
STUDENT = rows([2.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]).log()
TEACHER = rows([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.99, 0.01, 0.0], [0.98, 0.01, 0.01])


def test_taught_with_literal_numbers() -> None:
    # entropies 0, 0, 0.056002, 0.111902; divergences ln 2, ln 4, ln 3 - 0.056002, and the last hesitates
    assert fedloke.taught(TEACHER, STUDENT, 0.1).item() == pytest.approx(0.780513, abs=1e-6)
    # now it counts too, with ln 3 - 0.111902
    assert fedloke.taught(TEACHER, STUDENT, 0.2).item() == pytest.approx(1.027191, abs=1e-6)
    # and here only the two certain rows
    assert fedloke.taught(TEACHER, STUDENT, 0.05).item() == pytest.approx(0.519860, abs=1e-6)


def test_an_entropy_equal_to_delta_is_too_much() -> None:
    q, student = rows([0.75, 0.25]), rows([0.0, 0.0])
    limit = fedloke.entropy(q).item()
    assert fedloke.taught(q, student, limit).item() == 0.0
    assert fedloke.taught(q, student, limit * (1 + 1e-9)).item() == pytest.approx(0.130812, abs=1e-6)
    assert fedloke.taught(rows([1.0, 0.0]), student, 0.0).item() == 0.0


def test_a_student_that_is_sure_of_the_wrong_class() -> None:
    found = fedloke.taught(rows([1.0, 0.0, 0.0]), rows([0.0, 200.0, 0.0]), 0.1)
    assert found.item() == pytest.approx(200.0, abs=1e-6)


def test_only_taught_rows_pull_the_student() -> None:
    student = STUDENT.clone().requires_grad_()
    fedloke.taught(TEACHER, student, 0.1).backward()
    assert student.grad is not None
    expected = (student.detach().softmax(1) - TEACHER) / 4
    expected[3] = 0.0
    assert student.grad.flatten().tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-9)


def test_no_images() -> None:
    none = torch.zeros(0, 3)
    assert fedloke.entropy(none).shape == (0,)
    assert fedloke.taught(none, none, 0.1).item() == 0.0


@pytest.mark.parametrize(
    ("round", "length", "expected"),
    [
        (1, 200, 0.005),
        (50, 200, 0.25),
        (150, 200, 0.75),
        (199, 200, 0.995),
        (200, 200, 1.0),
        (201, 200, 1.0),
        (5000, 200, 1.0),
        (1, 1, 1.0),
        (1, 4, 0.25),
    ],
)
def test_ramp(round: int, length: int, expected: float) -> None:
    assert fedloke.ramp(round, length) == pytest.approx(expected, abs=1e-12)
