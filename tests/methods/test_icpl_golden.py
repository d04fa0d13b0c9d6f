"""ICPL against published numbers, and against a version so slow that it is obviously right."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import one_hot

from proxyfl.core.errors import ConfigError
from proxyfl.methods.addons.icpl import anchor_losses, category_sets, icpl_loss

PRIOR = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def grid(rows: int, columns: int) -> Tensor:
    return torch.arange(rows * columns, dtype=torch.float64).reshape(rows, columns)


FEATURES = torch.sin(0.7 * grid(8, 4) + 0.3)
PROXIES = torch.cos(0.9 * grid(3, 4) + 0.1)
LOGITS = 2 * torch.sin(1.3 * grid(5, 3) + 0.5)
TEACHER = LOGITS.softmax(1)
PROBS = torch.cat([TEACHER, TEACHER[2:]])
CONFIDENT = PROBS.max(1).values >= 0.8


def slow_positive(row, features, proxies, probs, confident, sets, weights):
    if confident[row]:
        return features[row] @ proxies[int(probs[row].argmax())]
    mixed = sum((weights[row, c] * proxies[c] for c in range(len(proxies)) if sets[row, c]), proxies[0] * 0)
    return features[row] @ mixed


def slow_losses(features, proxies, probs, confident, sets, *, labelled, weights, normalise, negatives):
    """Anchor by anchor and negative by negative, as the equations are written."""
    if normalise:
        features = features / features.norm(dim=1, keepdim=True)
        proxies = proxies / proxies.norm(dim=1, keepdim=True)
    losses = []
    for r in range(labelled, len(features)):
        positive = slow_positive(r, features, proxies, probs, confident, sets, weights)
        below = positive.exp()
        for q in range(len(features)):
            shared = any(bool(sets[r, c]) and bool(sets[q, c]) for c in range(sets.shape[1]))
            similarity = features[r] @ features[q]
            if q != r and not shared and (negatives == "all" or similarity.item() >= 1e-6):
                below = below + similarity.exp()
        losses.append(below.log() - positive)
    return torch.stack(losses)


def slow_loss(losses: Tensor, confident: Tensor, reduction: str) -> Tensor:
    if reduction == "anchors":
        return losses.mean()
    groups = [losses[confident], losses[~confident]]
    return sum((group.mean() for group in groups if len(group)), losses.sum() * 0)


def random_case(seed: int, *, labelled: int, unlabelled: int, classes: int, dim: int = 5):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = labelled + 2 * unlabelled
    weak = (2 * normal(labelled + unlabelled, classes)).softmax(1)
    probs = torch.cat([weak, weak[labelled:]])
    prior = normal(classes).softmax(0)
    weights = normal(rows, classes).softmax(1)
    return normal(rows, dim), normal(classes, dim), probs, probs.max(1).values >= 0.7, prior, weights


class TestReleasedVersion:
    def test_category_sets(self):
        sets = category_sets(PROBS, CONFIDENT, PRIOR)
        found = [set(row.nonzero().flatten().tolist()) for row in sets]
        assert found == [{1}, {2}, {0}, {1, 2}, {2}, {0}, {1, 2}, {2}]

    def test_positives_and_terms_per_anchor(self):
        sets = category_sets(PROBS, CONFIDENT, PRIOR)
        f, v = FEATURES / FEATURES.norm(dim=1, keepdim=True), PROXIES / PROXIES.norm(dim=1, keepdim=True)
        shares = torch.where(CONFIDENT[:, None], one_hot(PROBS.argmax(1), 3), sets * PROBS)
        positive = (f * (shares @ v)).sum(1)
        golden = [0.302381, 0.924408, -0.671848, -0.045106, -0.405885, 0.953799, 0.194701, -0.126961]
        assert positive.tolist() == pytest.approx(golden, abs=6e-7)

        losses = anchor_losses(f, v, shares, sets, 2, "positive")
        golden = [2.643117, 1.145785, 1.776141, 1.258997, 0.635114, 2.001658]
        assert losses.tolist() == pytest.approx(golden, abs=6e-7)

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 6e-7), (torch.float32, 1e-6)])
    def test_loss_and_gradient_norms(self, dtype, tolerance):
        features = FEATURES.clone().to(dtype).requires_grad_()
        proxies = PROXIES.clone().to(dtype).requires_grad_()
        loss = icpl_loss(features, proxies, PROBS.to(dtype), CONFIDENT, PRIOR.to(dtype), labelled=2)
        loss.backward()
        assert loss.item() == pytest.approx(1.576802, abs=tolerance)
        assert features.grad.norm().item() == pytest.approx(0.259476, abs=tolerance)
        assert proxies.grad.norm().item() == pytest.approx(0.102760, abs=tolerance)


class TestPaperVersion:
    truth = torch.eye(3, dtype=torch.float64)[[0, 2]]
    probs = torch.cat([truth, TEACHER[2:]])
    confident = torch.cat([torch.ones(2, dtype=torch.bool), TEACHER[2:].max(1).values > 0.8])
    local = (LOGITS[2:] + 0.25 * torch.cos(3 * torch.arange(3.0)[:, None] + torch.arange(3.0))).softmax(1)
    weights = torch.cat([truth, local])

    def test_terms_per_anchor(self):
        sets = category_sets(self.probs, self.confident, PRIOR)
        shares = torch.where(self.confident[:, None], one_hot(self.probs.argmax(1), 3), sets * self.weights)
        losses = anchor_losses(FEATURES[:5], PROXIES, shares, sets, 2, "all")
        sure = self.confident[2:]
        assert losses[sure].tolist() == pytest.approx([2.892904], abs=6e-7)
        assert losses[~sure].tolist() == pytest.approx([0.394052, 2.416695], abs=6e-7)

    def test_loss(self):
        loss = icpl_loss(
            FEATURES[:5], PROXIES, self.probs, self.confident, PRIOR, labelled=2, weights=self.weights,
            normalise=False, negatives="all", reduction="hc+lc",
        )  # fmt: skip
        assert loss.item() == pytest.approx(4.298278, abs=6e-7)


class TestAgainstTheSlowVersion:
    @pytest.mark.parametrize("normalise", [True, False])
    @pytest.mark.parametrize("negatives", ["positive", "all"])
    @pytest.mark.parametrize("reduction", ["anchors", "hc+lc"])
    @pytest.mark.parametrize("own_weights", [True, False])
    def test_loss_and_gradients(self, normalise, negatives, reduction, own_weights):
        for seed in range(3):
            features, proxies, probs, confident, prior, weights = random_case(
                seed, labelled=3, unlabelled=5, classes=4
            )
            features.requires_grad_()
            proxies.requires_grad_()
            sets = category_sets(probs, confident, prior)
            scores = weights if own_weights else probs
            losses = slow_losses(
                features, proxies, probs, confident, sets, labelled=3, weights=scores, normalise=normalise,
                negatives=negatives,
            )  # fmt: skip
            slow = slow_loss(losses, confident[3:], reduction)
            fast = icpl_loss(
                features, proxies, probs, confident, prior, labelled=3, normalise=normalise,
                weights=weights if own_weights else None, negatives=negatives, reduction=reduction,
            )  # fmt: skip
            assert fast.item() == pytest.approx(slow.item(), rel=1e-12)
            inputs = (features, proxies)
            for mine, theirs in zip(
                torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs), strict=True
            ):
                torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)

    def test_given_sets_take_the_place_of_the_prior(self):
        features, proxies, probs, confident, prior, _ = random_case(7, labelled=2, unlabelled=6, classes=6)
        confident = torch.zeros_like(confident)
        top2 = torch.zeros_like(probs, dtype=torch.bool).scatter(1, probs.topk(2).indices, True)
        losses = slow_losses(
            features, proxies, probs, confident, top2, labelled=2, weights=probs, normalise=True,
            negatives="positive",
        )  # fmt: skip
        given_sets = icpl_loss(features, proxies, probs, confident, prior, labelled=2, sets=top2)
        assert given_sets.item() == pytest.approx(losses.mean().item(), rel=1e-12)
        assert given_sets.item() != pytest.approx(
            icpl_loss(features, proxies, probs, confident, prior, labelled=2).item(), rel=1e-6
        )


class TestCategorySets:
    def test_a_row_with_nothing_above_the_prior_keeps_its_likeliest_class(self):
        probs = torch.tensor([[0.2, 0.5, 0.3]])
        sets = category_sets(probs, torch.tensor([False]), torch.tensor([0.2, 0.5, 0.3]))
        assert sets.tolist() == [[False, True, False]]

    @given(st.integers(0, 1000), st.integers(1, 8))
    @settings(max_examples=40, deadline=None)
    def test_never_empty_and_always_with_the_likeliest_class_when_confident(self, seed, classes):
        generator = torch.Generator().manual_seed(seed)
        probs = torch.rand(9, classes, generator=generator).softmax(1)
        prior = torch.rand(classes, generator=generator).softmax(0)
        confident = torch.rand(9, generator=generator) > 0.5
        sets = category_sets(probs, confident, prior)
        assert sets.any(1).all()
        assert (sets[confident].sum(1) == 1).all()
        assert sets[confident, probs.argmax(1)[confident]].all()


class TestEdges:
    def test_no_anchor_gives_zero_with_a_graph(self):
        features = FEATURES[:2].clone().requires_grad_()
        proxies = PROXIES.clone().requires_grad_()
        loss = icpl_loss(features, proxies, PROBS[:2], CONFIDENT[:2], PRIOR, labelled=2)
        loss.backward()
        assert loss.item() == 0
        assert not features.grad.any()
        assert not proxies.grad.any()

    def test_anchors_without_negatives_lose_nothing(self):
        one_class = torch.tensor([[0.9, 0.1]] * 4)
        features = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        loss = icpl_loss(
            features, torch.eye(2, 3), one_class, torch.ones(4, dtype=torch.bool), torch.tensor([0.5, 0.5]),
            labelled=0,
        )  # fmt: skip
        loss.backward()
        assert loss.item() == pytest.approx(0, abs=1e-7)
        assert not features.grad.any()

    def test_an_anchor_is_no_negative_of_itself_even_with_an_empty_set(self):
        nothing = torch.zeros(1, 2, dtype=torch.bool)
        loss = icpl_loss(
            torch.ones(1, 3), torch.ones(2, 3), torch.tensor([[0.6, 0.4]]), torch.tensor([False]),
            torch.tensor([0.5, 0.5]), labelled=0, sets=nothing, negatives="all",
        )  # fmt: skip
        assert loss.item() == 0

    def test_an_empty_group_adds_nothing(self):
        everyone = torch.ones(8, dtype=torch.bool)
        case = (FEATURES, PROXIES, PROBS, everyone, PRIOR)
        both = icpl_loss(*case, labelled=2, reduction="hc+lc")
        assert both.item() == pytest.approx(icpl_loss(*case, labelled=2).item(), rel=1e-12)

    def test_large_raw_products_stay_finite(self):
        features = (1000 * FEATURES.float()).requires_grad_()
        loss = icpl_loss(
            features, 1000 * PROXIES.float(), PROBS.float(), CONFIDENT, PRIOR.float(), labelled=2,
            normalise=False, negatives="all",
        )  # fmt: skip
        loss.backward()
        assert math.isfinite(loss.item())
        assert features.grad.isfinite().all()

    def test_zero_features_have_a_finite_gradient(self):
        features = torch.zeros(8, 4).requires_grad_()
        icpl_loss(features, PROXIES.float(), PROBS.float(), CONFIDENT, PRIOR.float(), labelled=2).backward()
        assert features.grad.isfinite().all()

    def test_under_autocast_it_computes_in_float32(self):
        features = FEATURES.bfloat16()
        expected = icpl_loss(
            features.float(), PROXIES.float(), PROBS.float(), CONFIDENT, PRIOR.float(), labelled=2
        )
        with torch.autocast("cpu", torch.bfloat16):
            loss = icpl_loss(features, PROXIES.float(), PROBS.float(), CONFIDENT, PRIOR.float(), labelled=2)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), abs=1e-7)

    def test_no_gradient_reaches_the_scores(self):
        probs = PROBS.clone().requires_grad_()
        weights = PROBS.clone().requires_grad_()
        features = FEATURES.clone().requires_grad_()
        icpl_loss(features, PROXIES, probs, CONFIDENT, PRIOR, labelled=2, weights=weights).backward()
        assert probs.grad is None
        assert weights.grad is None

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ({"negatives": "positiv"}, "did you mean 'positive'"),
            ({"reduction": "hc-lc"}, r"did you mean 'hc\+lc'"),
        ],
    )
    def test_unknown_options_are_named(self, option, message):
        with pytest.raises(ConfigError, match=message):
            icpl_loss(FEATURES, PROXIES, PROBS, CONFIDENT, PRIOR, labelled=2, **option)


@given(st.integers(0, 10_000), st.integers(0, 4), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_the_order_of_rows_and_of_classes_does_not_matter(seed, labelled, unlabelled, classes):
    features, proxies, probs, confident, prior, _ = random_case(
        seed, labelled=labelled, unlabelled=unlabelled, classes=classes
    )
    loss = icpl_loss(features, proxies, probs, confident, prior, labelled=labelled).item()
    assert math.isfinite(loss)
    assert loss >= 0

    generator = torch.Generator().manual_seed(seed)
    anchors = labelled + torch.randperm(2 * unlabelled, generator=generator)
    rows = torch.cat([torch.randperm(labelled, generator=generator), anchors])
    classes_order = torch.randperm(classes, generator=generator)
    shuffled = icpl_loss(
        features[rows], proxies[classes_order], probs[rows][:, classes_order], confident[rows],
        prior[classes_order], labelled=labelled,
    )  # fmt: skip
    assert shuffled.item() == pytest.approx(loss, rel=1e-10, abs=1e-12)
