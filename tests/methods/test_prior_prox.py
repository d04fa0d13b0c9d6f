"""The class prior and the proximal term: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.methods.addons import proximal, update_prior

UNIFORM = torch.tensor([0.25, 0.25, 0.25, 0.25])
COUNTS = torch.tensor([[6.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])


def test_pooled_counts_followed_slowly() -> None:
    # pooled: 6 2 1 1 of 10
    found = update_prior(UNIFORM, COUNTS, 0.99, "counts")
    assert found.tolist() == pytest.approx([0.2535, 0.2495, 0.2485, 0.2485], abs=1e-7)


def test_the_papers_mean_of_shares_replaces_the_prior() -> None:
    # shares: .75 .25 0 0 and 0 0 .5 .5
    assert update_prior(UNIFORM, COUNTS, 0.0, "clients").tolist() == [0.375, 0.125, 0.25, 0.25]


def test_pooling_and_following_are_separate() -> None:
    assert update_prior(UNIFORM, COUNTS, 0.0, "counts").tolist() == pytest.approx([0.6, 0.2, 0.1, 0.1])
    half = update_prior(UNIFORM, COUNTS, 0.5, "clients")
    assert half.tolist() == pytest.approx([0.3125, 0.1875, 0.25, 0.25])


@pytest.mark.parametrize("pooling", ["counts", "clients"])
def test_clients_without_counts_are_skipped(pooling: str) -> None:
    with_empty = torch.cat([COUNTS, torch.zeros(2, 4)])
    assert torch.equal(
        update_prior(UNIFORM, with_empty, 0.5, pooling), update_prior(UNIFORM, COUNTS, 0.5, pooling)
    )
    assert torch.equal(update_prior(UNIFORM, torch.zeros(3, 4), 0.5, pooling), UNIFORM)


def test_what_is_left_of_the_start_after_the_papers_rounds() -> None:
    """22 % after 150 rounds and 5 % after 300, of a prior pushed to one class only."""
    for rounds, left in ((150, 0.2215), (300, 0.0490)):
        prior = torch.tensor([0.5, 0.5])
        for _ in range(rounds):
            prior = update_prior(prior, torch.tensor([[0.0, 9.0]]), 0.99, "counts")
        assert prior[0].item() == pytest.approx(0.5 * left, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 500), min_size=3, max_size=3), min_size=1, max_size=6),
    st.floats(0, 1),
    st.sampled_from(["counts", "clients"]),
)
def test_it_stays_a_distribution(counts: list[list[int]], ema: float, pooling: str) -> None:
    found = update_prior(torch.full((3,), 1 / 3), torch.tensor(counts).float(), ema, pooling)
    assert found.sum().item() == pytest.approx(1, abs=1e-5)
    assert bool((found >= 0).all())


def test_the_proximal_term() -> None:
    local = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    start = [torch.tensor([0.0, 4.0]), torch.tensor([[6.0]])]
    # 1 + 4 + 9 = 14
    assert proximal(local, start, 0.001).item() == pytest.approx(0.007)
    assert proximal(local, local, 0.5).item() == 0.0


def test_the_pull_of_the_proximal_term() -> None:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    proximal([weight], [torch.tensor([0.0, 4.0])], 0.1).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([0.1, -0.2])
