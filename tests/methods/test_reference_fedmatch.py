"""FedMatch's two sets of parameters, votes, losses, deltas and neighbours, against loops over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import fedmatch, halves

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_vote(predictions: Sequence[list[float]]) -> int:
    votes = [0] * len(predictions[0])
    for p in predictions:
        votes[p.index(max(p))] += 1
    return votes.index(max(votes))


def slow_log_softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    total = math.log(sum(math.exp(g - top) for g in logits))
    return [g - top - total for g in logits]


def slow_agreement(
    strong: Tensor, weak: Tensor, label: Tensor, mask: Tensor, helpers: Sequence[Tensor]
) -> float:
    """The mean over every row of the cross entropy and of the helpers' mean divergence, where selected."""
    total = 0.0
    for i in range(len(strong)):
        if not mask[i]:
            continue
        total -= slow_log_softmax(strong[i].tolist())[int(label[i])]
        own = slow_log_softmax(weak[i].tolist())
        for helper in helpers:
            pairs = zip(helper[i].tolist(), own, strict=True)
            total += sum(p * (math.log(p) - log) for p, log in pairs if p > 0) / len(helpers)
    return total / len(strong) if len(strong) else 0.0


def slow_penalty(sigma: Sequence[Tensor], psi: Sequence[Tensor], l2: float, l1: float) -> float:
    total = 0.0
    for first, second in zip(sigma, psi, strict=True):
        for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
            total += l2 * (a - b) ** 2 + l1 * abs(b)
    return total


def slow_nearest(clients: list[int], embeddings: list[list[float]], client: int, count: int) -> list[int]:
    if client not in clients:
        return []
    own = embeddings[clients.index(client)]
    others = []
    for other, vector in zip(clients, embeddings, strict=True):
        if other != client:
            others.append((math.dist(own, vector), other))
    return [other for _, other in sorted(others)[:count]]


def draw(seed: int, rows: int, classes: int) -> Tensor:
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 5.0], size=(rows, 1))
    return torch.from_numpy(scale * rng.normal(size=(rows, classes))).softmax(1)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def one_hots(*labels: int, classes: int = 3) -> Tensor:
    return torch.eye(classes, dtype=torch.float64)[list(labels)]


def network(seed: int) -> dict[str, Tensor]:
    return {
        "conv.weight": normal(seed, 2, 1, 3, 3),
        "bn.weight": normal(seed + 1, 2),
        "bn.running_mean": normal(seed + 2, 2),
        "bn.num_batches_tracked": torch.tensor(5),
        "table": torch.arange(4).reshape(2, 2),
        "classifier.weight": normal(seed + 3, 3, 2),
        "classifier.bias": normal(seed + 4, 3),
    }


@pytest.mark.parametrize("share", [0.2, 0.5, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_decompose(seed: int, share: float) -> None:
    weights = network(seed)
    sigma, psi = halves.decompose(weights, share=share)
    assert set(sigma) == set(weights)
    assert set(psi) == {"conv.weight", "classifier.weight"}
    for name, value in weights.items():
        assert sigma[name].tolist() == value.tolist()
    for name, value in psi.items():
        expected = [share * x for x in weights[name].flatten().tolist()]
        assert value.shape == weights[name].shape
        assert value.flatten().tolist() == pytest.approx(expected, rel=1e-12)


def test_the_start_is_six_fifths_of_the_weights() -> None:
    weights = {"w": torch.tensor([[1.0, -2.0], [0.0, 0.5]]), "b": torch.tensor([3.0])}
    sigma, psi = halves.decompose(weights)
    assert psi["w"].flatten().tolist() == pytest.approx([0.2, -0.4, 0.0, 0.1])
    composed = halves.compose(sigma, psi)
    assert composed["w"].flatten().tolist() == pytest.approx([1.2, -2.4, 0.0, 0.6])
    assert composed["b"].tolist() == [3.0]


@pytest.mark.parametrize("threshold", [0.0, 5e-6, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_compose(seed: int, threshold: float) -> None:
    sigma = network(seed)
    psi = {name: normal(seed + 50, *sigma[name].shape) for name in ("conv.weight", "classifier.weight")}
    psi["classifier.weight"] *= 5e-6
    found = halves.compose(sigma, psi, threshold=threshold)
    assert set(found) == set(sigma)
    for name, value in sigma.items():
        if name not in psi:
            assert found[name].tolist() == value.tolist()
            assert found[name].dtype == value.dtype
            continue
        pairs = zip(value.flatten().tolist(), psi[name].flatten().tolist(), strict=True)
        expected = [a + (0.0 if abs(b) < threshold else b) for a, b in pairs]
        assert found[name].flatten().tolist() == pytest.approx(expected, rel=1e-14, abs=1e-16)


def test_compose_of_literal_numbers() -> None:
    sigma = {"w": torch.ones(1, 5, dtype=torch.float64), "n": torch.tensor(9)}
    psi = {"w": torch.tensor([[4.9e-6, 5e-6, -4.9e-6, -5e-6, 0.25]], dtype=torch.float64)}
    found = halves.compose(sigma, psi)
    assert (found["w"] - 1).flatten().tolist() == pytest.approx([0.0, 5e-6, 0.0, -5e-6, 0.25], abs=1e-12)
    assert found["n"].item() == 9
    assert psi["w"][0, 0].item() == 4.9e-6


@pytest.mark.parametrize("helpers", [0, 1, 2, 5])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_vote(seed: int, classes: int, helpers: int) -> None:
    local = draw(seed, 40, classes)
    others = [draw(seed + 100 + h, 40, classes) for h in range(helpers)]
    expected = [slow_vote([p[i].tolist() for p in (local, *others)]) for i in range(40)]
    found = fedmatch.majority_vote(local, others)
    assert found.dtype == torch.int64
    assert found.tolist() == expected


def test_votes_of_literal_rows() -> None:
    local = one_hots(2, 2, 0, 1, 2)
    helpers = [one_hots(1, 0, 1, 1, 1), one_hots(0, 0, 1, 2, 2)]
    # all differ: the lowest class; two helpers outvote; two helpers outvote; two of three; two of three
    assert fedmatch.majority_vote(local, helpers).tolist() == [0, 0, 1, 1, 2]
    # one against one: the lowest class, whoever named it
    assert fedmatch.majority_vote(local, helpers[:1]).tolist() == [1, 0, 0, 1, 1]
    assert fedmatch.majority_vote(local, []).tolist() == [2, 2, 0, 1, 2]


def test_votes_ignore_how_sure_a_model_is() -> None:
    local = torch.tensor([[0.0, 0.01, 0.99]])
    helpers = [torch.tensor([[0.34, 0.33, 0.33]]), torch.tensor([[0.4, 0.3, 0.3]])]
    assert fedmatch.majority_vote(local, helpers).tolist() == [0]


def test_votes_of_nobody() -> None:
    none = torch.zeros(0, 3)
    assert fedmatch.majority_vote(none, [none, none]).shape == (0,)


@pytest.mark.parametrize("helpers", [0, 1, 2, 3])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_agreement(seed: int, classes: int, helpers: int) -> None:
    strong, weak = 4 * normal(seed, 30, classes), 4 * normal(seed + 1, 30, classes)
    others = [draw(seed + 100 + h, 30, classes) for h in range(helpers)]
    rng = np.random.default_rng(seed)
    label = torch.from_numpy(rng.integers(classes, size=30))
    mask = torch.from_numpy(rng.uniform(size=30) < 0.6)
    expected = slow_agreement(strong, weak, label, mask, others)
    found = fedmatch.agreement_loss(strong, weak, label, mask, others)
    assert found.item() == pytest.approx(expected, rel=1e-8)
    single = fedmatch.agreement_loss(strong.float(), weak.float(), label, mask, [p.float() for p in others])
    assert single.item() == pytest.approx(expected, rel=1e-5)


# softmax: strong (1/2, 1/4, 1/4) and (1/8, 1/8, 3/4); weak (1/4, 1/2, 1/4) and (1/3, 1/3, 1/3)
STRONG = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 6.0]]).double().log()
WEAK = torch.tensor([[1.0, 2.0, 1.0], [1.0, 1.0, 1.0]]).double().log()
LABEL = torch.tensor([0, 2])
HELPERS = [one_hots(0, 2), torch.tensor([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]).double()]


@pytest.mark.parametrize(
    ("mask", "helpers", "expected"),
    [
        # cross entropies ln 2 and ln 4/3; divergences ln 4 and ln 3 of the one, 1/2 ln 2 and 0 of the other
        ([1, 1], 0, 0.490415),  # (0.693147 + 0.287682) / 2
        ([1, 0], 0, 0.346574),
        ([1, 1], 1, 1.732868),  # (0.980829 + 1.386294 + 1.098612) / 2
        ([1, 1], 2, 1.198285),  # (0.980829 + (1.386294 + 0.346574) / 2 + 1.098612 / 2) / 2
        ([0, 1], 2, 0.418494),  # (0.287682 + 1.098612 / 2) / 2
        ([0, 0], 2, 0.0),
    ],
)
def test_agreement_of_literal_rows(mask: list[int], helpers: int, expected: float) -> None:
    found = fedmatch.agreement_loss(STRONG, WEAK, LABEL, torch.tensor(mask).bool(), HELPERS[:helpers])
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_gradients_of_the_agreement() -> None:
    strong, weak = STRONG.clone().requires_grad_(), WEAK.clone().requires_grad_()
    mask = torch.tensor([True, False])
    fedmatch.agreement_loss(strong, weak, LABEL, mask, HELPERS).backward()
    assert strong.grad is not None
    assert weak.grad is not None
    # (softmax - label) / 2 rows, and (softmax - mean of the helpers) / 2 rows
    expected = [-0.25, 0.125, 0.125, 0.0, 0.0, 0.0]
    assert strong.grad.flatten().tolist() == pytest.approx(expected, abs=1e-9)
    expected = [-0.25, 0.125, 0.125, 0.0, 0.0, 0.0]
    assert weak.grad.flatten().tolist() == pytest.approx(expected, abs=1e-9)


def test_agreement_of_no_rows() -> None:
    none, label = torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for helpers in ([], [none]):
        assert fedmatch.agreement_loss(none, none, label, label.bool(), helpers).item() == 0.0


@pytest.mark.parametrize(("l2", "l1"), [(10.0, 1e-4), (0.0, 2.0), (3.0, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_penalty(seed: int, l2: float, l1: float) -> None:
    sigma = [normal(seed, 4, 3), normal(seed + 1, 2, 1, 3, 3)]
    psi = [normal(seed + 2, 4, 3), normal(seed + 3, 2, 1, 3, 3)]
    found = halves.decomposition_penalty(sigma, psi, l2, l1)
    assert found.item() == pytest.approx(slow_penalty(sigma, psi, l2, l1), rel=1e-10)


def test_penalty_of_literal_numbers_and_its_slope() -> None:
    sigma = [torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0]])]
    psi = [torch.tensor([[0.5, -1.0]], requires_grad=True), torch.tensor([[-3.0]], requires_grad=True)]
    found = halves.decomposition_penalty(sigma, psi, 10.0, 0.1)
    # 10 (0.25 + 9 + 9) + 0.1 (0.5 + 1 + 3)
    assert found.item() == pytest.approx(182.95, rel=1e-6)
    found.backward()
    # 20 (psi - sigma) + 0.1 sign psi
    assert psi[0].grad.flatten().tolist() == pytest.approx([-9.9, -60.1], rel=1e-6)
    assert psi[1].grad.flatten().tolist() == pytest.approx([-60.1], rel=1e-6)


@pytest.mark.parametrize("threshold", [5e-5, 0.5, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_sparse_delta(seed: int, threshold: float) -> None:
    old, change = normal(seed, 6, 5), normal(seed + 1, 6, 5)
    change[::2] *= 5e-5
    change[1, 1] = 0.0
    new = old + change
    received, sent = halves.sparse_delta(new, old, threshold)
    expected, count = [], 0
    for a, b in zip(new.flatten().tolist(), old.flatten().tolist(), strict=True):
        changed = abs(a - b) > threshold
        count += changed
        expected.append(a if changed else b)
    assert 0 < count < 30
    assert int(sent) == count
    assert received.shape == (6, 5)
    assert received.flatten().tolist() == pytest.approx(expected, abs=1e-12)


def test_sparse_delta_of_literal_numbers() -> None:
    old = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    new = torch.tensor([1.0, 2.25, 2.5, 3.0], dtype=torch.float64)
    received, sent = halves.sparse_delta(new, old, 0.25)
    assert received.tolist() == [1.0, 2.0, 2.5, 3.0]  # a change of the threshold itself is not sent
    assert int(sent) == 2
    assert old.tolist() == [1.0, 2.0, 3.0, 4.0]
    received, sent = halves.sparse_delta(old, old, 0.0)
    assert received.tolist() == old.tolist()
    assert int(sent) == 0


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_nearest(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    clients, embeddings = rng.permutation(20)[:9], rng.normal(size=(9, 10))
    for client in range(20):
        found = fedmatch.nearest_clients(
            torch.from_numpy(clients), torch.from_numpy(embeddings), client, count
        )
        assert found == slow_nearest(clients.tolist(), embeddings.tolist(), client, count)


def test_nearest_of_literal_vectors() -> None:
    clients = torch.tensor([7, 3, 12, 5])
    embeddings = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0], [0.0, -2.0]])
    # from client 7: 5, 1 and 2 away
    assert fedmatch.nearest_clients(clients, embeddings, 7, 2) == [12, 5]
    assert fedmatch.nearest_clients(clients, embeddings, 3, 1) == [12]
    assert fedmatch.nearest_clients(clients, embeddings, 7, 9) == [12, 5, 3]


def test_a_client_without_a_vector_or_without_others_has_no_helpers() -> None:
    clients, embeddings = torch.tensor([7, 3]), torch.zeros(2, 4)
    assert fedmatch.nearest_clients(clients, embeddings, 0, 2) == []
    assert fedmatch.nearest_clients(clients[:1], embeddings[:1], 7, 2) == []
    assert fedmatch.nearest_clients(clients[:0], embeddings[:0], 7, 2) == []


def test_an_identical_twin_is_a_neighbour_and_the_client_itself_is_not() -> None:
    clients, embeddings = torch.tensor([4, 9, 2]), torch.tensor([[1.0], [1.0], [6.0]])
    assert fedmatch.nearest_clients(clients, embeddings, 9, 1) == [4]
    assert fedmatch.nearest_clients(clients, embeddings, 4, 1) == [9]
