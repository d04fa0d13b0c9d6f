"""Optimiser, schedule and clipping of gradients, as the training settings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import ConfigError
from proxyfl.methods.optimisers import usual_optimiser
from proxyfl.runs.settings import identity
from toybox import little_config, make_simulation, play, same_state

SIMULATION = make_simulation()


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({}, [1, 1, 1, 1]),
        ({"schedule": "cosine"}, [1, 0.8535534, 0.5, 0.1464466]),
        ({"schedule": "cosine", "warmup": 2}, [0.5, 1, 1, 0.5]),
        ({"schedule": "step", "decay": 0.1, "decay_every": 2}, [1, 1, 0.1, 0.1]),
        ({"schedule": "step", "decay": 0.5, "decay_every": 1, "warmup": 1}, [1, 1, 0.5, 0.25]),
    ],
)
def test_the_learning_rate_over_four_rounds(settings: dict[str, Any], factors: list[float]) -> None:
    train = TrainSettings(**settings)
    assert [train.lr_factor(round, 4) for round in (1, 2, 3, 4)] == pytest.approx(factors)


def test_adamw_takes_its_settings() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    train = TrainSettings(optimiser="adamw", beta1=0.5, beta2=0.25, weight_decay=0.1)
    optimiser = usual_optimiser([weight], 0.01, train)
    weight.grad = torch.tensor([3.0])
    optimiser.step()
    # decay: 1 - 0.01 * 0.1; then a step of lr * sign, since the first m and sqrt(v) are equal when corrected
    assert float(weight) == pytest.approx(1 - 0.001 - 0.01, abs=1e-6)


def test_nesterov() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.0]))
    optimiser = usual_optimiser([weight], 1.0, TrainSettings(nesterov=True, momentum=0.5, weight_decay=0))
    weight.grad = torch.tensor([1.0])
    optimiser.step()
    assert float(weight) == -1.5  # g + m v with v = g


@pytest.mark.parametrize(
    "changes",
    [{"optimiser": "adamw", "lr": 0.01}, {"schedule": "cosine"}, {"max_grad_norm": 0.01}, {"nesterov": True}],
)
def test_each_changes_the_result_and_the_identity(tmp_path: Path, changes: dict[str, Any]) -> None:
    usual = little_config("fixmatch-gpl")
    other = little_config("fixmatch-gpl", **{f"train__{name}": value for name, value in changes.items()})
    ends = [play(config, SIMULATION, tmp_path / str(k)) for k, config in enumerate((usual, other))]
    assert not same_state(*ends)
    assert identity(usual) != identity(other)


def test_a_clipped_gradient_moves_the_weights_no_further(tmp_path: Path) -> None:
    config = little_config(
        "fedavg", rounds=1, per_round=1, train__max_grad_norm=0.001, train__momentum=0.0,
        train__weight_decay=0.0, train__lr=1.0, federation__weighting="uniform",
    )  # fmt: skip
    start = play(
        little_config("fedavg", rounds=1, per_round=1, train__lr=0.0), SIMULATION, tmp_path / "start"
    )
    end = play(config, SIMULATION, tmp_path / "end")
    moved = [
        (end.weights[name] - value).norm() ** 2
        for name, value in start.weights.items()
        if name.endswith(("weight", "bias"))
    ]
    steps = 4  # 32 images in batches of 8, one epoch
    assert 0 < float(sum(moved)) ** 0.5 <= steps * 0.001 * 1.001


@pytest.mark.parametrize(
    ("method", "changes", "fault"),
    [
        ("fedmatch", {"optimiser": "adamw"}, "SGD with method.lr"),
        ("fedmatch", {"schedule": "cosine"}, "train.schedule"),
        ("fedavg", {"nesterov": True, "momentum": 0.0}, "nesterov"),
        ("fedavg", {"leak_momentum": True, "optimiser": "adamw"}, "leak_momentum"),
        ("fedavg", {"schedule": "linear"}, "constant, cosine, step"),
    ],
)
def test_what_cannot_be_meant_is_refused(method: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        little_config(method, **{f"train__{name}": value for name, value in changes.items()})
