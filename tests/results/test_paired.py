"""Differences over pairs of runs and their bootstrap intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyfl.results.paired import (
    EVERY_FLIP,
    Difference,
    bootstrap_interval,
    holm,
    paired_difference,
    sign_flip_chance,
    warning,
)

SAMPLES = st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=8)


def slow_interval(values, level, resamples, seed):
    """One draw after the other; quantiles between neighbours of the sorted means."""
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        total = 0.0
        for _ in values:
            total += values[int(rng.integers(0, len(values)))]
        means.append(total / len(values))
    means.sort()

    def quantile(share):
        place = share * (len(means) - 1)
        below = math.floor(place)
        above = min(below + 1, len(means) - 1)
        return means[below] + (place - below) * (means[above] - means[below])

    return quantile((1 - level) / 2), quantile((1 + level) / 2)


@pytest.mark.parametrize(
    "values", [[0.01, 0.02, 0.06], [-0.03, 0.01, 0.02, 0.08], [0.1, -0.2, 0.3, 0.0, 0.05, -0.07]]
)
@pytest.mark.parametrize("level", [0.95, 0.5])
def test_the_interval_is_that_of_an_obvious_bootstrap(values, level):
    slow = slow_interval(values, level, resamples=2000, seed=5)
    assert bootstrap_interval(values, level, resamples=2000, seed=5) == pytest.approx(slow, abs=1e-15)


def test_an_interval_in_numbers():
    # Means of four draws from {0, 0, 1, 1} are binomial: 0 and 1 have 1/16 each, so 95 % leave out neither.
    assert bootstrap_interval([0.0, 0.0, 1.0, 1.0]) == (0.0, 1.0)
    # At 80 % the tails of 10 % begin inside the steps at 1/4 and 3/4 (cumulated 5/16 and 15/16).
    assert bootstrap_interval([0.0, 0.0, 1.0, 1.0], level=0.8) == (0.25, 0.75)


def test_three_values_span_their_interval():
    # All three draws are the smallest with probability 1/27 = 3.7 %, more than the 2.5 % cut off.
    assert bootstrap_interval([0.02, 0.05, 0.11]) == pytest.approx((0.02, 0.11))


@given(SAMPLES)
def test_the_mean_lies_inside(values):
    low, high = bootstrap_interval(values)
    assert low - 1e-12 <= sum(values) / len(values) <= high + 1e-12
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12


@given(SAMPLES, st.floats(-2, 2))
def test_a_shift_of_all_values_shifts_the_interval(values, shift):
    low, high = bootstrap_interval(values)
    moved = bootstrap_interval([value + shift for value in values])
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-12)


@given(SAMPLES)
def test_the_interval_comes_out_the_same_each_time(values):
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_pairs_are_the_seeds_that_both_have():
    found = paired_difference({1: 0.5, 2: 0.7, 9: 0.1}, {2: 0.6, 1: 0.3, 8: 0.9})
    assert found == Difference(pytest.approx(0.15), pairs=2)
    assert found.verdict == "too few seeds"
    assert paired_difference({1: 0.5}, {2: 0.5}) is None


def test_pairing_takes_out_what_seeds_have_in_common():
    """Seeds differ by far more than methods do; only pairs show it."""
    theirs = {1: 0.50, 2: 0.70, 3: 0.90}
    found = paired_difference(
        {seed: value + gain for (seed, value), gain in zip(theirs.items(), (0.02, 0.03, 0.01), strict=True)},
        theirs,
    )
    assert (found.low, found.mean, found.high) == pytest.approx((0.01, 0.02, 0.03))
    assert found.verdict == "better, few seeds"


def test_verdicts():
    zero = dict.fromkeys(range(6), 0.0)
    gains = [0.01, 0.02, 0.015, 0.01, 0.03, 0.02]
    assert paired_difference(dict(enumerate(gains)), zero).verdict == "better"
    assert paired_difference(zero, dict(enumerate(gains))).verdict == "worse"
    assert paired_difference(dict(enumerate([0.01, -0.02, 0.015, 0.0, -0.01, 0.02])), zero).verdict == "noise"
    assert paired_difference(zero, zero).verdict == "noise"
    assert Difference(0.1, 3, 0.0, 0.2).verdict == "noise"


def test_the_chance_of_a_mean_in_numbers():
    # Of 8 choices of signs +++ and −−− reach 6; of 16 the four with the 1 either way reach 9.
    assert sign_flip_chance([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_chance([-1.0, -2.0, -3.0]) == 2 / 8
    assert sign_flip_chance([3.0, 4.0, 3.0, -1.0]) == 4 / 16
    assert sign_flip_chance([0.0, 0.0, 0.0]) == 1.0


def test_one_pair_against_five_may_be_chance_though_the_interval_misses_0():
    zero = dict.fromkeys(range(6), 0.0)
    found = paired_difference(dict(enumerate([0.02, 0.021, 0.03, -0.001, 0.01, 0.005])), zero)
    assert found.low > 0
    assert found.chance == 4 / 64
    assert found.verdict == "noise"


def test_many_pairs_are_judged_by_a_sample_of_their_signs():
    values = np.random.default_rng(3).normal(0.3, 1.0, EVERY_FLIP)
    exact = sign_flip_chance([*values])
    assert sign_flip_chance([*values, 0.0]) == pytest.approx(exact, abs=0.015)  # a 0 has no sign to turn
    assert sign_flip_chance([1.0] * 30) > 0  # never a chance of nothing


@pytest.mark.parametrize("pairs", [6, 8, 10])
def test_without_a_difference_few_verdicts_claim_one(pairs):
    generator = np.random.default_rng(pairs)
    zero = dict.fromkeys(range(pairs), 0.0)
    trials = [paired_difference(dict(enumerate(generator.normal(0, 0.01, pairs))), zero) for _ in range(300)]
    assert sum(each.verdict != "noise" for each in trials) / 300 < 0.08


def test_a_rounding_error_decides_no_verdict():
    """The first pair is equal but for the order in which its thirds were added."""
    ours = {1: sum([0.1, 0.2, 0.3]) / 3, 2: 0.5, 3: 0.6}
    theirs = {1: sum([0.3, 0.2, 0.1]) / 3, 2: 0.4, 3: 0.5}
    assert ours[1] != theirs[1]
    for found in (paired_difference(ours, theirs), paired_difference(theirs, ours)):
        assert found.verdict == "noise"
        assert "-0.0" not in (str(found.low), str(found.high))
    assert (found.low, found.high) == (-0.1, 0.0)


def test_few_pairs_are_said_to_be_few():
    assert warning(2) == ""
    assert warning(3).startswith("3 pairs are few")
    assert "25 % of cases" in warning(3)
    assert "6 % of cases" in warning(5)
    assert warning(6) == ""


@pytest.mark.parametrize("pairs", [3, 4, 5])
def test_the_warning_does_not_exaggerate(pairs):
    """Without a real difference the interval misses 0 at least as often as the warning says."""
    rng = np.random.default_rng(3)
    missed = 0
    for _ in range(400):
        low, high = bootstrap_interval(rng.normal(size=pairs).tolist(), resamples=400)
        missed += not low <= 0 <= high
    assert missed / 400 > 2.0 ** (1 - pairs) - 0.05


def test_holm_corrects_a_family_step_by_step() -> None:
    found = [Difference(0.1, 8, 0.05, 0.2, chance) for chance in (0.03, 0.01, 0.04, 0.005)]
    corrected = holm(found)
    assert [each.chance for each in corrected] == pytest.approx([0.06, 0.03, 0.06, 0.02])
    assert {each.family for each in corrected} == {4}
    assert [each.verdict for each in corrected] == ["noise", "better", "noise", "better"]
    assert holm([]) == []
    assert holm([Difference(0.1, 8, 0.05, 0.2, 0.9), Difference(0.1, 8, 0.05, 0.2, 0.8)])[0].chance == 1.0


def test_more_comparisons_need_more_pairs() -> None:
    """Six pairs of one sign: 2 of 64 choices. Of four comparisons each must be four times as rare."""
    verdicts = {}
    for pairs in (5, 6, 7, 8):
        one = Difference(-0.05, pairs, -0.06, -0.04, 2.0 ** (1 - pairs))
        verdicts[pairs] = (one.verdict, holm([one] * 4)[0].verdict)
    assert verdicts == {
        5: ("worse, few seeds", "worse, few seeds"),
        6: ("worse", "worse, few seeds"),
        7: ("worse", "worse, few seeds"),
        8: ("worse", "worse"),
    }
    assert Difference(-0.05, 8, -0.06, -0.04, 0.06, family=4).verdict == "noise"
