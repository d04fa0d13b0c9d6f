"""Server optimisers: literal numbers, what takes the plain mean, and the same numbers after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from proxyfl.aggregation import Clip, DifferentialPrivacy, FedAdam, FedAvgM, FedYogi, Median, Round
from proxyfl.aggregation.base import Aggregator
from proxyfl.core.errors import ConfigError
from proxyfl.core.state import ServerState, Update
from proxyfl.methods import create
from proxyfl.methods.context import ServerContext
from proxyfl.runs.settings import identity, resolve
from toybox import Stopped, Told, little_config, make_simulation, play, same_state

OLD = {
    "w": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64),
    "norm.running_mean": torch.tensor([3.0]),
    "norm.running_var": torch.tensor([1.0]),
    "steps": torch.tensor(4),
}
FIRST, SECOND = (0.5, -0.25, 0.0), (0.125, 1.0, 0.0)
"""Mean changes of w in two rounds."""


def rounds(aggregator: Aggregator, *changes: tuple[float, ...]) -> tuple[list[list[float]], ServerState]:
    """The changes of w that come of rounds with two clients each, around the given mean change."""
    state, found = ServerState(0, dict(OLD)), []
    for change in changes:
        ctx = ServerContext(state.round + 1, 1, 2, torch.device("cpu"), state.weights, dict(state.extras))
        taken = aggregator.begin(Round(state, create("fedavg"), per_round=2, holders=2))
        for client, sign in enumerate((1, -1)):
            apart = sign * torch.tensor([0.25, 0.5, 0.0], dtype=torch.float64)
            weights = {
                "w": state.weights["w"] + torch.tensor(change, dtype=torch.float64) + apart,
                "norm.running_mean": torch.tensor([5.0 + client]),
                "norm.running_var": torch.tensor([2.0]),
                "steps": torch.tensor(10),
            }
            taken.add(taken.admit(Update(state.round + 1, client, 5, weights)), 5.0)
        settled = taken.settle(ctx, [{}, {}])
        found.append((settled.weights["w"] - state.weights["w"]).tolist())
        state = ServerState(state.round + 1, settled.weights, ctx.extras)
    return found, state


def test_momentum() -> None:
    """v1 = d1; v2 = 0.5 d1 + d2."""
    (first, second), state = rounds(FedAvgM(lr=0.5, momentum=0.5), FIRST, SECOND)
    assert first == pytest.approx([0.25, -0.125, 0.0])
    assert second == pytest.approx([0.1875, 0.4375, 0.0])
    assert state.extras["server/_v/w"].tolist() == pytest.approx([0.375, 0.875, 0.0])


def test_without_momentum_it_is_the_mean() -> None:
    (first, second), _ = rounds(FedAvgM(lr=1.0, momentum=0.0), FIRST, SECOND)
    assert first == pytest.approx(FIRST)
    assert second == pytest.approx(SECOND)


def test_adam() -> None:
    """b1 = 0.5, b2 = 0.75, tau = 0.5: v begins at 0.25.

    Round 1, d = 0.5: m = 0.25, v = 0.25, step m / (0.5 + 0.5); d = -0.25: m = -0.125, v = 0.203125.
    Round 2, d = 0.125: m = 0.1875, v = 0.19140625; d = 1: m = 0.4375, v = 0.40234375.
    """
    (first, second), state = rounds(FedAdam(lr=1.0, beta1=0.5, beta2=0.75, tau=0.5), FIRST, SECOND)
    assert first == pytest.approx([0.25, -0.125 / (0.203125**0.5 + 0.5), 0.0])
    assert second == pytest.approx([0.1875 / (0.19140625**0.5 + 0.5), 0.4375 / (0.40234375**0.5 + 0.5), 0.0])
    assert state.extras["server/_m/w"].tolist() == pytest.approx([0.1875, 0.4375, 0.0])
    assert state.extras["server/_v/w"].tolist() == pytest.approx([0.19140625, 0.40234375, 0.140625])


def test_yogi() -> None:
    """Round 1: v = 0.25 where d^2 = 0.25 (the sign of 0), 0.25 - 0.25 * 0.0625 = 0.234375 where d^2 is less.
    Round 2: 0.25 - 0.25 * 0.015625 = 0.24609375, and 0.234375 + 0.25 * 1 = 0.484375 where d^2 is larger.
    """
    (first, second), state = rounds(FedYogi(lr=2.0, beta1=0.5, beta2=0.75, tau=0.5), FIRST, SECOND)
    assert first == pytest.approx([2 * 0.25, 2 * -0.125 / (0.234375**0.5 + 0.5), 0.0])
    assert second == pytest.approx(
        [2 * 0.1875 / (0.24609375**0.5 + 0.5), 2 * 0.4375 / (0.484375**0.5 + 0.5), 0.0]
    )
    assert state.extras["server/_v/w"].tolist() == pytest.approx([0.24609375, 0.484375, 0.25])


@pytest.mark.parametrize("cls", [FedAvgM, FedAdam, FedYogi])
def test_statistics_and_counters_take_the_mean(cls: type[FedAvgM] | type[FedAdam]) -> None:
    _, state = rounds(cls(lr=0.1), FIRST)
    assert state.weights["norm.running_mean"].tolist() == [5.5]
    assert state.weights["norm.running_var"].tolist() == [2.0]
    assert state.weights["steps"].item() == 10
    assert {name.rpartition("/")[2] for name in state.extras} == {"w"}
    assert all("/_" in name for name in state.extras), "what the server remembers is never sent"


def test_around_other_rules() -> None:
    """The median of two is their mean; clipped to half of its length, w moves half as far."""
    assert rounds(FedAvgM(inner=Median()), FIRST)[0] == [pytest.approx(FIRST)]
    short = rounds(FedAvgM(inner=Clip(1e-3)), FIRST)[0][0]
    assert 0 < abs(short[0]) < 1e-3
    noised, _ = rounds(FedAvgM(inner=DifferentialPrivacy(clip=1.0)), FIRST)
    assert noised == rounds(DifferentialPrivacy(clip=1.0), FIRST)[0], "a step of 1 without a past"


def test_what_is_private_stays_so_behind_an_optimiser() -> None:
    ours = FedAdam(inner=DifferentialPrivacy(clip=1.0, where="site"))
    assert ours.private
    assert ours.noised
    federation = resolve("digits").federation
    assert ours.spent(5, federation, 100) == ours.inner.spent(5, federation, 100) != {}
    assert "weighting" in ours.refusal(create("fedavg"), resolve("digits").train, federation)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"optimiser": "adam"}, "is not one of none, fedavgm, fedadam, fedyogi"),
        ({"beta2": 1.0}, "aggregation.beta2"),
        ({"tau": 0.0}, "aggregation.tau"),
        ({"optimiser": "fedadam", "rule": "krum", "hostile": 0.4}, "krum needs"),
    ],
)
def test_refused_settings(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        resolve("digits", {"aggregation": settings})


def test_no_run_is_renamed() -> None:
    plain = resolve("digits", {"compute": {"dtype": "fp32"}})
    assert identity(plain)[:6] == "3897fe"
    other = resolve("digits", {"compute": {"dtype": "fp32"}, "aggregation": {"optimiser": "fedadam"}})
    assert identity(other) != identity(plain)


def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    config = little_config(
        "fedavg", rounds=3, aggregation__optimiser="fedadam", aggregation__lr=0.05, aggregation__tau=0.01
    )
    simulation, told = make_simulation(), Told(stop_after=1)
    whole = play(config, simulation, tmp_path / "whole")
    with pytest.raises(Stopped):
        play(config, simulation, tmp_path / "half", observers=[told])
    half = told.reports[0].state
    assert half.extras["server/_v/classifier.weight"].abs().sum() > 0
    kept = ServerState.from_tensors(written_and_read(half, tmp_path / "state.safetensors"))
    assert same_state(whole, play(config, simulation, tmp_path / "half", state=kept))
    forgetful = ServerState(kept.round, kept.weights, {}, kept.versions, kept.carry)
    assert not same_state(whole, play(config, simulation, tmp_path / "half", state=forgetful))
    plain = little_config("fedavg", rounds=3)
    assert not same_state(whole, play(plain, simulation, tmp_path / "plain"))


def written_and_read(state: ServerState, path: Path) -> dict[str, torch.Tensor]:
    save_file({name: value.contiguous() for name, value in state.to_tensors().items()}, path)
    return load_file(path)
