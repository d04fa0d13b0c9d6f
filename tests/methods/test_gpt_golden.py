"""Proxy tuning against published numbers, and against autograd with plain SGD."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.core.errors import ConfigError
from proxyfl.methods.addons.gpt import proxy_loss, proxy_margin, tune_proxies

LOCAL = torch.sin(0.5 * torch.arange(24, dtype=torch.float64).reshape(2, 3, 4) + 0.2)
AVERAGE = LOCAL.mean(0)
MARGIN = 2.484002

GOLDEN = [
    # anchor, margin, loss at the average, gradient norm, after 1 full step of 0.005, after 100
    ("local", True, 1.347103, 0.359488, 1.346458, 1.309067),
    ("local", False, 0.217547, 0.096867, 0.217500, 0.213610),
    ("global", False, 1.305066, 0.583463, 1.303374, 1.230096),
]
golden = pytest.mark.parametrize(("anchor", "margin", "start", "norm", "after_1", "after_100"), GOLDEN)
precision = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 6e-7), (torch.float32, 1.2e-6)])


def slow_loss(proxies: Tensor, rows: Tensor, pairs: list[int], margin: float, anchor: str) -> Tensor:
    """The loss of some rows, numbered client by client, one at a time."""
    classes = len(proxies)
    total = proxies.sum() * 0
    for pair in pairs:
        m, c = divmod(pair, classes)
        if anchor == "local":
            gaps = [rows[m, c] - proxies[k] for k in range(classes)]
        else:
            gaps = [proxies[c] - rows[m, k] for k in range(classes)]
        logits = -torch.stack([(gap.square().sum() + 1e-12).sqrt() for gap in gaps])
        logits = logits - margin * torch.eye(classes, dtype=logits.dtype)[c]
        total = total - logits.log_softmax(0)[c]
    return total / len(pairs) if anchor == "local" else total


def slow_tuning(average, local, *, epochs, lr, batch, margin, anchor, generator) -> Tensor:
    proxies = torch.nn.Parameter(average.clone())
    optimiser = torch.optim.SGD([proxies], lr=lr)
    count = local.shape[0] * local.shape[1]
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator).tolist()
        for start in range(0, count, batch):
            optimiser.zero_grad()
            slow_loss(proxies, local, order[start : start + batch], margin, anchor).backward()
            optimiser.step()
    return proxies.detach()


def random_rows(seed: int, clients: int, classes: int, dim: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(clients, classes, dim, generator=generator, dtype=torch.float64)


class TestGolden:
    def test_the_averaged_rows(self):
        expected = [
            [0.057790, 0.524534, 0.862853, 0.989917],
            [0.874613, 0.545175, 0.082258, -0.400798],
            [-0.785725, -0.978279, -0.931316, -0.656335],
        ]
        assert AVERAGE.flatten().tolist() == pytest.approx([x for row in expected for x in row], abs=6e-7)

    @precision
    def test_the_margin(self, dtype, tolerance):
        assert proxy_margin(AVERAGE.to(dtype)) == pytest.approx(MARGIN, abs=tolerance)

    @golden
    @precision
    def test_loss_and_gradient_norm_at_the_average(
        self, dtype, tolerance, anchor, margin, start, norm, after_1, after_100
    ):
        proxies = AVERAGE.clone().to(dtype).requires_grad_()
        value = proxy_margin(proxies) if margin else 0.0
        loss = proxy_loss(proxies, LOCAL.to(dtype), margin_value=value, anchor=anchor)
        loss.backward()
        assert loss.item() == pytest.approx(start, abs=tolerance)
        assert proxies.grad.norm().item() == pytest.approx(norm, abs=tolerance)

    @golden
    @precision
    def test_loss_after_full_steps(self, dtype, tolerance, anchor, margin, start, norm, after_1, after_100):
        average, local = AVERAGE.to(dtype), LOCAL.to(dtype)
        value = proxy_margin(average) if margin else 0.0
        for steps, expected in ((0, start), (1, after_1), (100, after_100)):
            tuned = tune_proxies(average, local, epochs=steps, lr=0.005, margin=margin, anchor=anchor)
            assert tuned.dtype == dtype
            loss = proxy_loss(tuned, local, margin_value=value, anchor=anchor)
            assert loss.item() == pytest.approx(expected, abs=tolerance)

    @golden
    def test_the_written_out_gradient_has_the_same_norm(
        self, anchor, margin, start, norm, after_1, after_100
    ):
        moved = tune_proxies(AVERAGE, LOCAL, epochs=1, lr=1.0, margin=margin, anchor=anchor) - AVERAGE
        assert moved.norm().item() == pytest.approx(norm, abs=6e-7)


class TestAgainstAutograd:
    @pytest.mark.parametrize("anchor", ["local", "global"])
    @pytest.mark.parametrize("margin", [True, False])
    @pytest.mark.parametrize("shape", [(1, 2, 3), (3, 5, 7), (4, 1, 2), (30, 12, 400)])
    def test_one_full_step_is_minus_the_gradient(self, anchor, margin, shape):
        local = random_rows(0, *shape)
        average = (local.mean(0) + 0.01 * random_rows(1, 1, *shape[1:])[0]).requires_grad_()
        value = proxy_margin(average) if margin else 0.0
        loss = proxy_loss(average, local, margin_value=value, anchor=anchor)
        (gradient,) = torch.autograd.grad(loss, average)
        tuned = tune_proxies(average, local, epochs=1, lr=0.5, margin=margin, anchor=anchor)
        torch.testing.assert_close(tuned, average.detach() - 0.5 * gradient, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("anchor", ["local", "global"])
    def test_the_loss_is_that_of_the_slow_version(self, anchor):
        local = random_rows(3, 4, 5, 6)
        proxies = random_rows(4, 1, 5, 6)[0].requires_grad_()
        fast = proxy_loss(proxies, local, margin_value=0.7, anchor=anchor)
        slow = slow_loss(proxies, local, list(range(20)), 0.7, anchor)
        assert fast.item() == pytest.approx(slow.item(), rel=1e-12)
        torch.testing.assert_close(
            torch.autograd.grad(fast, proxies), torch.autograd.grad(slow, proxies), rtol=1e-9, atol=1e-12
        )

    @pytest.mark.parametrize("anchor", ["local", "global"])
    @pytest.mark.parametrize("margin", [True, False])
    @pytest.mark.parametrize("batch", [1, 4, 9, 100])
    def test_mini_batches_follow_the_same_shuffles(self, anchor, margin, batch):
        local = random_rows(5, 3, 5, 4)
        average = local.mean(0)
        common = {"epochs": 6, "lr": 0.05, "batch": batch, "anchor": anchor}
        fast = tune_proxies(
            average, local, margin=margin, generator=torch.Generator().manual_seed(9), **common
        )
        slow = slow_tuning(
            average, local, margin=proxy_margin(average) if margin else 0.0,
            generator=torch.Generator().manual_seed(9), **common,
        )  # fmt: skip
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-12)


class TestEdges:
    def test_the_margin_is_capped_and_zero_for_one_class(self):
        assert proxy_margin(torch.tensor([[0.0], [1000.0]])) == 100
        assert proxy_margin(torch.tensor([[5.0, 1.0]])) == 0

    def test_the_margin_is_the_largest_of_the_nearest_distances(self):
        assert proxy_margin(torch.tensor([[0.0], [1.0], [3.5]])) == pytest.approx(2.5)

    @pytest.mark.parametrize("anchor", ["local", "global"])
    def test_one_class_has_nothing_to_learn(self, anchor):
        local = random_rows(0, 3, 1, 4)
        average = local.mean(0)
        torch.testing.assert_close(tune_proxies(average, local, epochs=5, lr=0.1, anchor=anchor), average)

    @pytest.mark.parametrize("anchor", ["local", "global"])
    def test_a_single_client_starts_at_distance_zero_and_stays_finite(self, anchor):
        local = random_rows(1, 1, 4, 3).float()
        generator = torch.Generator().manual_seed(0)
        tuned = tune_proxies(
            local[0], local, epochs=20, lr=0.005, batch=2, anchor=anchor, generator=generator
        )
        assert tuned.isfinite().all()
        assert not torch.equal(tuned, local[0])

    def test_no_client_or_no_epoch_leaves_the_average(self):
        assert torch.equal(tune_proxies(AVERAGE, LOCAL[:0], epochs=5, lr=0.1), AVERAGE)
        assert torch.equal(tune_proxies(AVERAGE, LOCAL, epochs=0, lr=0.1), AVERAGE)

    def test_the_inputs_are_left_as_they_are(self):
        average, local = AVERAGE.clone(), LOCAL.clone()
        tune_proxies(average, local, epochs=3, lr=0.1)
        assert torch.equal(average, AVERAGE)
        assert torch.equal(local, LOCAL)

    def test_half_precision_is_computed_in_float32(self):
        tuned = tune_proxies(AVERAGE.bfloat16(), LOCAL.bfloat16(), epochs=100, lr=0.005)
        assert tuned.dtype == torch.bfloat16
        exact = tune_proxies(AVERAGE.bfloat16().float(), LOCAL.bfloat16().float(), epochs=100, lr=0.005)
        assert torch.equal(tuned, exact.bfloat16())

    def test_same_generator_same_bits(self):
        runs = [
            tune_proxies(
                AVERAGE.float(), LOCAL.float(), epochs=9, lr=0.1, batch=4,
                generator=torch.Generator().manual_seed(3),
            )
            for _ in range(2)
        ]  # fmt: skip
        assert torch.equal(*runs)

    def test_without_a_generator_the_order_is_always_the_same(self):
        first, second = (tune_proxies(AVERAGE, LOCAL, epochs=3, lr=0.1, batch=2) for _ in range(2))
        assert torch.equal(first, second)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch": 0, "generator": torch.Generator()}, "gpt.batch = 0"),
            ({"anchor": "locl"}, "did you mean 'local'"),
        ],
    )
    def test_wrong_options_are_refused(self, options, message):
        with pytest.raises(ConfigError, match=message):
            tune_proxies(AVERAGE, LOCAL, epochs=1, lr=0.1, **options)


@given(
    st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 6), st.sampled_from(["local", "global"])
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_full_steps_do_not_care_for_the_order_of_clients_and_classes(seed, clients, classes, anchor):
    local = random_rows(seed, clients, classes, 3)
    average = local.mean(0)
    generator = torch.Generator().manual_seed(seed)
    m, c = torch.randperm(clients, generator=generator), torch.randperm(classes, generator=generator)
    tuned = tune_proxies(average, local, epochs=4, lr=0.02, anchor=anchor)
    shuffled = tune_proxies(average[c], local[m][:, c], epochs=4, lr=0.02, anchor=anchor)
    torch.testing.assert_close(shuffled, tuned[c], rtol=1e-8, atol=1e-10)


@given(st.integers(0, 10_000), st.sampled_from(["local", "global"]), st.booleans())
@settings(max_examples=30, deadline=None)
def test_small_full_steps_lower_the_loss(seed, anchor, margin):
    local = random_rows(seed, 3, 4, 5)
    average = local.mean(0)
    value = proxy_margin(average) if margin else 0.0
    losses = [
        proxy_loss(
            tune_proxies(average, local, epochs=epochs, lr=1e-3, margin=margin, anchor=anchor),
            local, margin_value=value, anchor=anchor,
        ).item()
        for epochs in (0, 10, 20)
    ]  # fmt: skip
    assert losses == sorted(losses, reverse=True)
