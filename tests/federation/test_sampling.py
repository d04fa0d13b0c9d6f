"""Who takes part: the released program's stream, and ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxyfl.core.config import Config, FederationSettings
from proxyfl.federation.sampling import Population, Redraw, sample_clients


def drawn_by(config: Config, *given: Any) -> list[int]:
    return sample_clients(config.federation, config.seed, *given)


def config(sampling: str = "stream", per_round: int = 8, seed: int = 1) -> Config:
    return Config(seed=seed, federation=FederationSettings(per_round=per_round, sampling=sampling))


def population(sizes: list[int]) -> Population:
    labelled = np.array(sizes, dtype=np.int64) // 3
    return Population(labelled, np.array(sizes, dtype=np.int64) - labelled)


EQUAL = population([2500] * 20)


def test_the_released_programs_first_samples() -> None:
    samples = [drawn_by(config("legacy"), round, EQUAL) for round in (1, 2, 3)]
    assert samples == [
        [1, 17, 2, 5, 11, 0, 18, 6],
        [18, 7, 15, 14, 17, 3, 1, 10],
        [8, 2, 6, 1, 17, 4, 5, 11],
    ]


def test_the_legacy_stream_does_not_depend_on_which_round_is_asked_first_or_on_the_seed() -> None:
    assert drawn_by(config("legacy", seed=99), 3, EQUAL) == [8, 2, 6, 1, 17, 4, 5, 11]


def test_a_sample_is_a_pure_function_of_seed_and_round() -> None:
    first = [drawn_by(config(), round, EQUAL) for round in range(1, 30)]
    again = [drawn_by(config(), round, EQUAL) for round in reversed(range(1, 30))]
    assert first == again[::-1]
    assert len({tuple(sample) for sample in first}) == 29
    assert first != [drawn_by(config(seed=2), round, EQUAL) for round in range(1, 30)]


def test_without_replacement_and_all_are_met() -> None:
    met: set[int] = set()
    for round in range(1, 30):
        sample = drawn_by(config(), round, EQUAL)
        assert len(sample) == len(set(sample)) == 8
        met |= set(sample)
    assert met == set(range(20))


def test_every_client_is_as_likely_as_every_other() -> None:
    counts = np.zeros(20)
    for round in range(1, 1001):
        counts[drawn_by(config(), round, EQUAL)] += 1
    # 400 expected, standard deviation sqrt(1000 * 0.4 * 0.6) = 15.5
    assert abs(counts - 400).max() < 5 * 15.5


def test_largest_first_then_by_number() -> None:
    uneven = population([5, 30, 7, 30, 1, 9])
    assert drawn_by(config(per_round=6), 1, uneven) == [1, 3, 5, 2, 0, 4]


def test_clients_without_images_are_never_asked() -> None:
    some = population([0, 4, 0, 4, 4, 0])
    for kind in ("stream", "legacy"):
        for round in range(1, 20):
            assert set(drawn_by(config(kind, per_round=2), round, some)) <= {1, 3, 4}
        assert sorted(drawn_by(config(kind, per_round=6), 1, some)) == [1, 3, 4]


def test_population() -> None:
    some = Population(np.array([0, 2, 0]), np.array([0, 1, 5]))
    assert some.sizes.tolist() == [0, 3, 5]
    assert some.holders.tolist() == [1, 2]


def test_the_legacy_stream_goes_on_where_it_was_and_back_where_it_is_asked_to() -> None:
    fresh = population([2500] * 20)
    asked = [drawn_by(config("legacy"), round, fresh) for round in (1, 3, 2)]
    assert asked == [
        [1, 17, 2, 5, 11, 0, 18, 6],
        [8, 2, 6, 1, 17, 4, 5, 11],
        [18, 7, 15, 14, 17, 3, 1, 10],
    ]
    assert drawn_by(config("legacy", per_round=3), 1, fresh) == [1, 17, 2]


def test_a_redraw_is_a_pure_function_of_seed_round_attempt_and_who_is_online() -> None:
    people = Population(np.array([1, 1, 1, 1, 1, 0]), np.array([3, 9, 3, 5, 0, 0]))
    ours = config(per_round=3)
    assert drawn_by(ours, 7, people, Redraw(2, (0, 2))) == [0, 2], "all that are there"
    assert drawn_by(ours, 7, people, Redraw(2, (3, 1, 5))) == [1, 3], "largest first, holders only"
    everyone = (0, 1, 2, 3, 4)
    drawn = {k: drawn_by(ours, 7, people, Redraw(k, everyone)) for k in range(2, 30)}
    assert drawn == {k: drawn_by(ours, 7, people, Redraw(k, everyone[::-1])) for k in drawn}
    assert all(len(clients) == 3 for clients in drawn.values())
    assert set().union(*drawn.values()) == set(everyone), "whoever fails, another attempt leaves it out"
    other = config(per_round=3, seed=9)
    assert [drawn_by(other, 7, people, Redraw(k, everyone)) for k in drawn] != [*drawn.values()]
    assert (drawn[2], drawn[3]) == ([1, 0, 4], [0, 2, 4])
    for sampling in ("poisson", "legacy"):
        assert drawn_by(config(sampling, 3), 7, people, Redraw(2, everyone)) == drawn[2]
