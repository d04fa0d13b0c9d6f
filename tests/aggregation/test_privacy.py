"""Differential privacy: the account against published values, bounded sums, noise, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from method_pages import coverage
from proxyfl.aggregation import Aggregator, DifferentialPrivacy, Mean, Round
from proxyfl.aggregation.accountant import ORDERS, epsilon, fixed_size_rdp, poisson_rdp
from proxyfl.aggregation.change import change_length
from proxyfl.aggregation.coverage import uncovered
from proxyfl.aggregation.privacy import PrivateSum, bounded_change, expected, with_noise
from proxyfl.cli.ls import _print_privacy
from proxyfl.core.config import Config, FederationSettings, KeepSettings, TrainSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import Failure, ServerState, Task, Update
from proxyfl.federation.fold import Fold
from proxyfl.federation.sampling import Population, sample_clients
from proxyfl.methods import create, recipes
from proxyfl.methods.context import ServerContext
from proxyfl.runs.settings import resolve
from toybox import Told, assemble, little_config, make_simulation, play, same_bits, same_state

STATE = ServerState(
    4, {"w": torch.zeros(3), "norm.running_var": torch.full((2,), 1e-4), "steps": torch.tensor(7)}
)
PEOPLE = Population(np.full(100, 2), np.full(100, 8))


FEDERATION = FederationSettings(per_round=10, weighting="uniform", sampling="poisson")


def private(**settings: Any) -> DifferentialPrivacy:
    return DifferentialPrivacy(**{"clip": 1.0, "noise": 1.0, **settings})


def private_sum(ours: DifferentialPrivacy, state: ServerState = STATE, participants: int = 10) -> PrivateSum:
    return ours.begin(Round(state, create("fedavg"), 10, holders=participants, seed=1))


def sent(weights: dict[str, torch.Tensor]) -> Update:
    return Update(5, 0, 10, weights)


def moved(*values: float) -> dict[str, torch.Tensor]:
    return {**STATE.weights, "w": torch.tensor(values), "steps": torch.tensor(99)}


def classic(share: float, noise: float, rounds: int, delta: float) -> float:
    """The conversion that was in use when the published values were computed."""
    return min(rounds * poisson_rdp(share, noise, a) - math.log(delta) / (a - 1) for a in ORDERS)


def test_published_values() -> None:
    """Abadi et al. (2016), section 5.1, and the figure in the instructions of TensorFlow Privacy."""
    assert classic(0.01, 4, 10_000, 1e-5) == pytest.approx(1.26, abs=0.005)
    assert classic(256 / 60_000, 1.12, 14_063, 1e-5) == pytest.approx(2.92, abs=0.005)


@pytest.mark.parametrize(
    ("share", "noise", "rounds", "delta", "poisson", "fixed"),
    [
        (0.01, 4.0, 10_000, 1e-5, 1.03549, 5.136833),
        (256 / 60_000, 1.12, 14_063, 1e-5, 2.518686, None),
        (0.05, 1.0, 100, 1e-5, 4.038913, 34.263536),
        (0.05, 0.5, 20, 1e-5, 12.362694, 224.160734),
        (0.3, 2.0, 50, 1e-6, 6.615590, 32.344215),
        (1.0, 5.0, 10, 1e-5, 2.813653, 6.208356),
    ],
)
def test_a_well_kept_accountant_agrees(
    share: float, noise: float, rounds: int, delta: float, poisson: float, fixed: float | None
) -> None:
    """dp-accounting 0.6: its series for broken orders ends a little early, hence 0.1 %; for samples of a
    fixed size it also interpolates between whole orders, which gains up to 2 %.
    """
    found, order = epsilon(share, noise, rounds, delta)
    assert found == pytest.approx(poisson, rel=1e-3)
    assert found <= poisson * (1 + 1e-6)
    assert order in ORDERS
    if fixed is not None:
        assert fixed * (1 - 1e-6) <= epsilon(share, noise, rounds, delta, poisson=False)[0] <= fixed * 1.02


@pytest.mark.parametrize(
    ("share", "noise", "order"),
    [(0.05, 1.0, 4.6), (0.05, 0.5, 1.3), (0.3, 2.0, 1.2), (0.9, 1.5, 3.6), (0.01, 4.0, 5.5), (0.05, 1.0, 5.0),
     (0.001, 0.6, 4.9), (0.6, 0.3, 1.1), (0.05, 0.5, 10.9), (0.02, 2.0, 64.0)],
)  # fmt: skip
def test_the_divergence_is_the_integral(share: float, noise: float, order: float) -> None:
    """E over N(0, z²) of (1 − q + q e^((2x − 1) / 2z²))^a, summed over a fine grid."""
    x = np.linspace(-40 * noise, 40 * noise + order, 400_001)
    density = -(x**2) / (2 * noise**2) - 0.5 * np.log(2 * np.pi * noise**2)
    ratio = np.logaddexp(np.log1p(-share), np.log(share) + (2 * x - 1) / (2 * noise**2))
    terms = density + order * ratio
    moment = terms.max() + np.log(np.exp(terms - terms.max()).sum() * (x[1] - x[0]))
    assert poisson_rdp(share, noise, order) == pytest.approx(moment / (order - 1), rel=1e-6, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.floats(0.001, 0.5), st.floats(0.5, 5), st.integers(1, 500))
def test_more_noise_and_fewer_participants_cost_less(share: float, noise: float, rounds: int) -> None:
    found = epsilon(share, noise, rounds, 1e-5)[0]
    assert 0 <= found <= epsilon(share, noise, rounds + 1, 1e-5)[0]
    assert found >= epsilon(share, noise * 1.5, rounds, 1e-5)[0]
    assert found >= epsilon(share / 2, noise, rounds, 1e-5)[0] - 1e-12
    assert found <= epsilon(1.0, noise, rounds, 1e-5)[0] + 1e-9


def test_edges_of_the_account() -> None:
    assert epsilon(0.1, 1.0, 0, 1e-5)[0] == 0
    assert epsilon(0.1, 0.0, 1, 1e-5)[0] == math.inf
    assert poisson_rdp(1.0, 2.0, 8.0) == 1.0
    assert fixed_size_rdp(1.0, 2.0, 8.0) == 4.0, "an exchange moves the sum twice as far"
    assert fixed_size_rdp(0.5, 2.0, 2.5) == 1.25, "without the help of sampling"


@pytest.mark.parametrize("share", [1e-4, 0.05, 0.5, 1.0])
@pytest.mark.parametrize("poisson", [True, False])
def test_the_account_never_fails_open(share: float, poisson: bool) -> None:
    found = [
        epsilon(share, noise, 3, 1e-5, poisson=poisson)[0]
        for noise in (1e-300, 1e-153, 1e-9, 9.9e-4, 1e-3, 0.1, 1e3, 1e6, 1e200)
    ]
    assert found[:4] == [math.inf] * 4, "too little noise to compute with is none"
    assert math.isfinite(found[4])
    assert found[4] > 1e3
    assert found == sorted(found, reverse=True)
    assert found[-1] == found[-2] < 0.01
    assert epsilon(share, math.nan, 3, 1e-5, poisson=poisson)[0] == math.inf


def test_a_moment_that_cannot_be_computed_is_no_bargain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxyfl.aggregation.accountant._whole_moment", lambda *_: math.nan)
    assert poisson_rdp(0.0123, 1.0, 7.0) == math.inf
    poisson_rdp.cache_clear()


def test_spent_follows_the_population() -> None:
    found = private().spent(20, FEDERATION, 100)
    assert found["epsilon"] == epsilon(0.1, 1.0, 20, 1e-5)[0]
    assert found["delta"] == 1e-5
    assert expected(10, 5) == 5
    assert expected(10, 0) == 1
    assert private().spent(20, FEDERATION, 5)["epsilon"] == epsilon(1.0, 1.0, 20, 1e-5)[0]
    exact = FederationSettings(per_round=10, weighting="uniform", sampling="stream")
    assert private().spent(20, exact, 100)["epsilon"] == epsilon(0.1, 1.0, 20, 1e-5, poisson=False)[0]


def test_the_mean_of_shortened_changes() -> None:
    """Almost no noise: (3, 0, 4) becomes (0.6, 0, 0.8), and ten are expected although two came."""
    total = private_sum(private(noise=1e-12))
    total.add(sent(moved(3.0, 0.0, 4.0)), 1.0)
    total.add(sent(moved(0.0, 0.5, 0.0)), 1.0)
    found = total.mean()
    assert found["w"].tolist() == pytest.approx([0.06, 0.05, 0.08], abs=1e-6)
    assert found["steps"].item() == 7, "how many steps a client made says how much it holds"
    assert list(found) == list(STATE.weights)


def test_noise_has_the_size_it_should_have() -> None:
    state = ServerState(0, {"w": torch.zeros(20_000), "norm.running_var": torch.zeros(50)})
    found = private_sum(private(clip=3.0, noise=2.0), state).mean()
    assert found["w"].std().item() == pytest.approx(0.6, rel=0.03)
    assert found["w"].mean().item() == pytest.approx(0, abs=0.02)
    assert found["norm.running_var"].min().item() == pytest.approx(1e-5), "no variance below zero"


def test_noise_is_a_function_of_seed_and_round_or_of_nothing() -> None:
    def drawn(round: int = 0, **settings: Any) -> torch.Tensor:
        return private_sum(private(**settings), ServerState(round, {"w": torch.zeros(5)})).mean()["w"]

    assert torch.equal(drawn(), drawn())
    assert not torch.equal(drawn(), drawn(1))
    assert not torch.equal(drawn(draw="system"), drawn(draw="system"))


def test_all_bits_of_the_systems_entropy_reach_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed of 32 bits is found by trying them all."""
    asked, seeds = [], [5, 5 + 2**33, 5 + 2**63, 5 + 2**130, 5 + 2**255, 5]

    def bits(count: int) -> int:
        asked.append(count)
        return seeds[len(asked) - 1]

    monkeypatch.setattr("proxyfl.aggregation.privacy.secrets.randbits", bits)
    state = ServerState(0, {"w": torch.zeros(3000)})
    found = [private_sum(private(draw="system"), state).mean()["w"] for _ in seeds]
    assert asked == [256] * 6
    assert torch.equal(found[0], found[5])
    assert len({tuple(noise[:3].tolist()) for noise in found}) == 5
    assert found[0].std().item() == pytest.approx(0.1, rel=0.06)


def test_no_change_is_longer_than_its_bound() -> None:
    """At weights of 1000, float32 rounds a change of 0.001 by 3 %; the sum is of what was not rounded."""
    old = {"w": torch.full((1000,), 1000.0)}
    new = {"w": old["w"] + 0.01 * torch.randn(1000, generator=torch.Generator().manual_seed(1))}
    near = bounded_change(new, old, 0.001)
    assert float(near["w"].norm()) == pytest.approx(0.001, rel=1e-12)
    total = private_sum(private(clip=0.001), ServerState(0, old), participants=1)
    total.add(sent(new), 1.0)
    assert float(total._sums["w"].norm()) == pytest.approx(0.001, rel=1e-12)
    inside = bounded_change(new, old, 10.0)
    assert torch.equal(inside["w"], new["w"].double() - old["w"].double())


def test_noise_does_not_depend_on_the_order_of_names() -> None:
    tensors = {"a": torch.zeros(3), "b": torch.zeros(2)}
    one, other = (
        with_noise(dict(sorted(tensors.items(), reverse=turned)), 1.0, torch.Generator().manual_seed(1))
        for turned in (False, True)
    )
    assert same_bits(one, other)


def test_sites_share_the_noise() -> None:
    """Ten of ten sites add up to the full noise; of four, the server adds the rest."""
    weights = {"w": torch.zeros(20_000), "steps": torch.tensor(3)}
    ours = private(clip=3.0, noise=2.0, where="site")
    for present in (10, 4):
        total = private_sum(ours, ServerState(0, weights))
        for client in range(present):
            task = Task(1, client, weights)
            update = Update(1, client, 9, {"w": torch.ones(20_000), "steps": torch.tensor(8)},
                            metrics={"loss/a": 1.0})  # fmt: skip
            left = ours.outgoing(update, task, per_round=10, seed=1)
            assert left.metrics == {}
            assert left.weights["steps"].item() == 3
            assert left.weights["w"].std().item() == pytest.approx(6 / 10**0.5, rel=0.03)
            total.add(left, 1.0)
        found = total.mean()["w"]
        assert found.std().item() == pytest.approx(0.6, rel=0.03)
        assert found.mean().item() == pytest.approx(present * 3 / 20_000**0.5 / 10, abs=0.02)


def test_without_privacy_nothing_is_done_at_the_site() -> None:
    update = Update(1, 0, 9, {"w": torch.ones(3)})
    task = Task(1, 0, {"w": torch.zeros(3)})
    assert Mean().outgoing(update, task, per_round=10, seed=1) is update
    assert private().outgoing(update, task, per_round=10, seed=1) is update, "the server will"


def fold(ours: Aggregator) -> Fold:
    ctx = ServerContext(5, 1, 3, torch.device("cpu"), {}, {})
    settings: Any = {
        "train": TrainSettings(),
        "federation": FEDERATION,
        "keep": KeepSettings(snapshot_every=1),
    }
    return Fold(ours, create("fedavg"), ctx, STATE, [0, 1], PEOPLE, **settings)


def test_a_round_without_answers_still_draws_its_noise() -> None:
    folded = fold(private())
    assert folded.settles
    folded.take(Failure(5, 0, "fell asleep"))
    ctx = ServerContext(5, 1, 3, torch.device("cpu"), {}, {})
    assert not torch.equal(folded.mean(ctx)["w"], STATE.weights["w"])
    assert not fold(Mean()).settles


def test_what_nobody_has_noised_is_not_written_down() -> None:
    folded = fold(private())
    folded.take(Update(5, 0, 10, moved(1.0, 0.0, 0.0), metrics={"steps": 2.0, "loss/a": 5.0}))
    assert (folded.clients, dict(folded.sums), dict(folded.watched)) == ([0], {}, {})
    assert folded.rows() == [], "nor is the client itself"


def test_only_noise_may_make_a_variance_negative() -> None:
    """Cut off at the site, it would no longer be the noise of the account; the server does it to the sum."""
    below = {**moved(0.0, 0.0, 0.0), "norm.running_var": torch.full((2,), -0.3)}
    told = fold(private()).take(Update(5, 0, 10, below))
    assert told == Failure(5, 0, "refused: 'norm.running_var' holds negative values")
    noised = fold(private(where="site"))
    assert isinstance(noised.take(Update(5, 0, 10, below)), Update)
    ctx = ServerContext(5, 1, 3, torch.device("cpu"), {}, {})
    assert float(noised.mean(ctx)["norm.running_var"].min()) >= 0.99e-5


def test_extras_that_slip_through_are_refused() -> None:
    answer = fold(private()).take(
        Update(5, 0, 10, moved(1.0, 0.0, 0.0), extras={"method/surprise": torch.ones(1)})
    )
    assert isinstance(answer, Failure)
    assert "refused: sends" in answer.reason


@pytest.mark.parametrize(
    ("method", "layer", "reason"),
    [
        ("proxyfl", {}, "does not cover proxyfl: prior sends more than weights.*gpt reads single updates"),
        ("gpt-only", {}, "gpt reads single updates"),
        ("proto", {}, "proto sends more than weights"),
        ("feddb", {}, "feddb sends more than weights.*feddb chooses weights"),
        ("fedmatch", {}, "fedmatch sends more than weights"),
        ("fedavg", {"federation": {"weighting": "size"}}, "needs federation.weighting = 'uniform'"),
        ("fedavg", {"federation": {"sampling": "legacy"}}, "set federation.sampling = 'poisson'"),
        ("fedavg", {"aggregation": {"rule": "median"}}, "leave aggregation.rule"),
        ("fedavg", {"aggregation": {"clip": 1.0}}, "leave aggregation.rule"),
        ("fedavg", {"privacy": {"noise": 0.0}}, "needs privacy.noise above 0"),
        (
            "fedavg",
            {"privacy": {"noise": 9e-4}},
            "noise = 0.0009 is outside the supported range; choose it between 0.001 and",
        ),
        (
            "fedavg",
            {"privacy": {"noise": 1e200}},
            "noise = 1e.200 is outside the supported range; choose it between 0.001 and",
        ),
        ("fedavg", {"privacy": {"delta": 0.0}}, "privacy.delta between 0 and 1"),
        ("fedavg", {"train": {"leak_momentum": True}}, "does not cover the momentum"),
        ("fedavg", {"privacy": {"clip": 0.0, "where": "site"}}, "needs privacy.clip above 0"),
    ],
)
def test_refusals(method: str, layer: dict[str, Any], reason: str) -> None:
    base = {"privacy": {"clip": 1.0}, "federation": {"weighting": "uniform"}, "method": {"name": method}}
    resolve("digits", {**base, "method": {"name": "fedavg"}})
    with pytest.raises(ConfigError, match=reason) as refused:
        resolve("digits", base, layer)
    assert "\n" not in str(refused.value)


def test_which_methods_are_covered() -> None:
    covered = {recipe.name for recipe in recipes() if not uncovered(create(recipe.name))}
    assert {"fedavg", "fedprox", "fixmatch-lpl", "fixmatch-gpl", "flexmatch", "fedloke", "sage"} <= covered
    assert covered.isdisjoint({"proxyfl", "gpt-only", "icpl-only", "proto", "feddb", "fedmatch"})


def test_poisson_sampling() -> None:
    ours = Config(federation=FEDERATION)
    drawn = [sample_clients(ours.federation, ours.seed, round, PEOPLE) for round in range(1, 301)]
    sizes = [len(chosen) for chosen in drawn]
    assert drawn[0] == sample_clients(ours.federation, ours.seed, 1, PEOPLE)
    assert np.mean(sizes) == pytest.approx(10, abs=0.6)
    assert np.std(sizes) == pytest.approx(3, abs=0.5)
    assert all(len(set(chosen)) == len(chosen) for chosen in drawn)
    few = Population(np.array([1, 0, 1]), np.zeros(3, dtype=np.int64))
    assert sample_clients(ours.federation, ours.seed, 1, few) == [0, 2], "all who hold anything"


def test_rounds_that_nobody_is_drawn_for_move_the_weights_too(tmp_path: Path) -> None:
    ours = little_config(
        "fedavg", per_round=1, rounds=6, federation__weighting="uniform", federation__sampling="poisson",
        privacy__clip=0.5,
    )  # fmt: skip
    told = Told()
    play(ours, make_simulation(), tmp_path, observers=[told])
    empty = [k for k, report in enumerate(told.reports) if k and not report.metrics["clients"]]
    assert empty
    for k in empty:
        assert not same_bits(told.reports[k].state.weights, told.reports[k - 1].state.weights)


@pytest.mark.parametrize("where", ["server", "site"])
def test_a_private_run(tmp_path: Path, where: str) -> None:
    ours = little_config(
        "flexmatch", per_round=2, federation__weighting="uniform", federation__sampling="poisson",
        privacy__clip=0.5, privacy__where=where,
    )  # fmt: skip
    told = Told()
    simulation = make_simulation()
    state = play(ours, simulation, tmp_path / "a", observers=[told])
    assert all(bool(torch.isfinite(value).all()) for value in state.weights.values())
    costs = [report.metrics["privacy"]["epsilon"] for report in told.reports]
    assert costs == [epsilon(0.5, 1.0, round, 1e-5)[0] for round in (1, 2)]
    assert all(report.metrics["losses"] == {} for report in told.reports)
    sent = [answer.metrics for kind, answer in told.calls if kind == "answered"]
    assert sent
    assert all((metrics == {}) == (where == "site") for metrics in sent), "a site does not even send them"
    half = dataclasses.replace(
        told.reports[0].state, weights=dict(sorted(told.reports[0].state.weights.items()))
    )
    again = play(ours, simulation, tmp_path / "a", state=half)
    assert same_bits(state.weights, dict(again.weights))
    assert change_length(state.weights, half.weights) > 0


def test_the_cost_is_shown() -> None:
    told = Console(record=True, width=200, file=io.StringIO())
    _print_privacy({"round": 7, "privacy": {"epsilon": 1.23456, "delta": 1e-5}}, told)
    assert "privacy: ε = 1.23 at δ = 1e-05 after 7 rounds" in told.export_text()
    _print_privacy({"round": 7}, told)
    assert told.export_text() == ""


def test_the_page_says_what_the_hooks_say() -> None:
    rows = coverage("privacy sage proxyfl").splitlines()
    assert any(row.startswith("| `sage` | yes | no | sage has no losses") for row in rows)
    assert any(row.startswith("| `proxyfl` | no | no | prior sends more than weights") for row in rows)
    assert "| `feddb` | no | feddb chooses weights of its own |" in coverage("rules feddb").splitlines()


@pytest.mark.slow
def test_sites_noise_their_updates_in_worker_processes_too(tmp_path: Path) -> None:
    ours = little_config("sage", federation__weighting="uniform", privacy__clip=0.5, privacy__where="site")
    simulation = make_simulation()
    here = play(ours, simulation, tmp_path / "here")
    federation, _ = assemble(tmp_path / "there", ours, simulation, 2)
    with closing(federation.engine):
        there = play(ours, simulation, tmp_path / "there", engine=lambda _: federation.engine)
    assert same_state(here, there)
