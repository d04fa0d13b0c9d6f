"""FlexMatch's thresholds, against a loop over the memory written from the equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.methods import flexmatch

CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(4)]


def slow_thresholds(last: list[int], classes: int, tau: float, warmup: bool) -> list[float]:
    counts, never = [0] * classes, 0
    for label in last:
        if label == -1:
            never += 1
        else:
            counts[label] += 1
    most = max(counts)
    if warmup:
        most = max(most, never)
    thresholds = []
    for count in counts:
        beta = count / most if most else 0.0
        thresholds.append(tau * beta / (2 - beta))
    return thresholds


def memory(*labels: int) -> Tensor:
    return torch.tensor(labels, dtype=torch.int64)


@pytest.mark.parametrize("tau", [0.95, 0.5])
@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("unseen", [0.0, 0.1, 0.95])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_against_the_loop(seed: int, classes: int, unseen: float, warmup: bool, tau: float) -> None:
    rng = np.random.default_rng(seed)
    last = rng.choice(classes, size=300, p=rng.dirichlet(np.full(classes, 0.5)))
    last[rng.uniform(size=300) < unseen] = -1
    found = flexmatch.class_thresholds(torch.from_numpy(last), classes, tau, warmup=warmup)
    assert found.shape == (classes,)
    assert found.is_floating_point()
    expected = slow_thresholds(last.tolist(), classes, tau, warmup)
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


# counts 4, 2, 0 and two never selected: beta 1, 1/2, 0, whose map is 1, 1/3, 0
SEEN = memory(0, 1, -1, 0, 0, 1, -1, 0)


def test_learnt_classes_set_the_scale() -> None:
    for warmup in (True, False):
        found = flexmatch.class_thresholds(SEEN, 3, 0.95, warmup=warmup)
        assert found.tolist() == pytest.approx([0.95, 0.316667, 0.0], abs=1e-6)


def test_images_never_selected_lower_every_threshold() -> None:
    # counts 4, 2, 0 and eight never selected: beta 1/2, 1/4, 0, whose map is 1/3, 1/7, 0
    last = torch.cat([SEEN, memory(*[-1] * 6)])
    found = flexmatch.class_thresholds(last, 3, 0.95)
    assert found.tolist() == pytest.approx([0.316667, 0.135714, 0.0], abs=1e-6)
    found = flexmatch.class_thresholds(last, 3, 0.95, warmup=False)
    assert found.tolist() == pytest.approx([0.95, 0.316667, 0.0], abs=1e-6)


def test_equal_counts_reach_the_full_threshold() -> None:
    for warmup in (True, False):
        found = flexmatch.class_thresholds(memory(2, 1, 0, 0, 1, 2, -1, -1), 3, 0.8, warmup=warmup)
        assert found.tolist() == pytest.approx([0.8, 0.8, 0.8], abs=1e-6)


def test_warm_up_is_the_default() -> None:
    last = memory(0, -1, -1)
    assert flexmatch.class_thresholds(last, 2, 0.9).tolist() == pytest.approx([0.3, 0.0], abs=1e-6)
    assert flexmatch.class_thresholds(last, 2, 0.9, warmup=False).tolist() == pytest.approx([0.9, 0.0])


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("pool", [0, 1, 50])
def test_a_memory_of_nothing_accepts_everything(pool: int, warmup: bool) -> None:
    last = torch.full((pool,), -1, dtype=torch.int64)
    assert flexmatch.class_thresholds(last, 3, 0.95, warmup=warmup).tolist() == [0.0, 0.0, 0.0]
