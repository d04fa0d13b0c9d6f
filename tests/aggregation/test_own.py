"""Aggregators as values, and those that people bring: by class, by function, by name, from a plug-in."""

from __future__ import annotations

import doctest
import importlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from proxyfl import aggregation
from proxyfl.aggregation import (
    Aggregator,
    Clip,
    DifferentialPrivacy,
    FedAdam,
    FedAvgM,
    Krum,
    Mean,
    Median,
    Round,
    TrimmedMean,
    build,
    register_aggregator,
)
from proxyfl.aggregation.build import build_aggregator
from proxyfl.core.config import AggregationSettings, PrivacySettings
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.plugins import load_plugin
from proxyfl.core.settings import setting
from proxyfl.core.state import ServerState, Tensors, Update
from proxyfl.methods import create
from proxyfl.methods.context import ServerContext
from proxyfl.runs.settings import resolve
from toybox import little_config, make_simulation, play, same_state

MODULES = ("", ".base", ".clipping", ".coordinates", ".krum", ".mean", ".privacy", ".server")


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(build, "_rules", dict(build._rules))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"proxyfl.aggregation{name}")
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


@dataclass(frozen=True)
class Nearest(Aggregator):
    """The update whose first number is nearest to the old one."""

    bonus: float = setting(0.0, "added to what is chosen", low=0, high=10)
    hostile: float = 0.0

    def combine(self, updates: Sequence[Tensors], weights: Sequence[float], old: Tensors) -> Tensors:
        places = range(len(updates))
        best = min(places, key=lambda k: abs(float(updates[k]["w"][0] - old["w"][0])))
        return {name: value + self.bonus for name, value in updates[best].items()}


def settled(aggregator: Aggregator, folder: Path | None = None, method: str = "fedavg") -> Tensors:
    old = {"w": torch.zeros(2), "steps": torch.tensor(1)}
    taken = aggregator.begin(Round(ServerState(0, old), create(method), 3, holders=3, spool=folder))
    for client, value in enumerate((4.0, -1.0, 9.0)):
        update = Update(1, client, 5, {"w": torch.tensor([value, 0.0]), "steps": torch.tensor(7 + client)})
        taken.add(taken.admit(update), 5.0)
    ctx = ServerContext(1, 1, 2, torch.device("cpu"), old, {})
    return taken.settle(ctx, [{}, {}, {}]).weights


def test_one_of_your_own(tmp_path: Path) -> None:
    found = settled(Nearest(bonus=0.75), tmp_path)
    assert found["w"].tolist() == [-0.25, 0.75]
    assert found["steps"].item() == 9, "8.75 in the type of the weights"
    assert not any(tmp_path.iterdir())
    assert settled(Clip(2.0, inner=Nearest()))["w"].tolist() == [-1.0, 0.0]
    assert settled(Clip(0.5, by="median", inner=Nearest()))["w"].tolist() == [-1.0, 0.0]
    assert settled(FedAvgM(lr=0.5, inner=Nearest()))["w"].tolist() == [-0.5, 0.0]


def test_by_name() -> None:
    register_aggregator("nearest")(Nearest)
    register_aggregator("one")(lambda settings: Krum(hostile=settings.hostile, keep=1))
    assert build.rules()[-2:] == ["nearest", "one"]
    assert build_aggregator(AggregationSettings(rule="nearest"), PrivacySettings()) == Nearest(hostile=0.2)
    assert build_aggregator(AggregationSettings(rule="one"), PrivacySettings()) == Krum(0.2, keep=1)
    with pytest.raises(ConfigError, match="already"):
        register_aggregator("nearest")(Median)
    with pytest.raises(ConfigError, match="nearest, one"):
        resolve("digits", {"aggregation": {"rule": "farthest"}})
    with pytest.raises(ConfigError, match="register_aggregator"):
        register_aggregator(Nearest)  # type: ignore[arg-type]


PLUGIN = """
from dataclasses import dataclass
from proxyfl.aggregation import Aggregator, register_aggregator
from proxyfl.aggregation.mean import weighted_mean

@register_aggregator("plain")
@dataclass(frozen=True)
class Plain(Aggregator):
    def combine(self, updates, weights, old):
        return weighted_mean(updates, weights)
"""


def test_a_plug_in_trains(tmp_path: Path) -> None:
    """Its mean from disk is the running mean, to the bit, whatever the method reads of single updates."""
    file = tmp_path / "rules.py"
    file.write_text(PLUGIN)
    load_plugin(str(file))
    simulation = make_simulation()
    own = play(little_config("proxyfl", aggregation__rule="plain"), simulation, tmp_path / "own")
    assert same_state(own, play(little_config("proxyfl"), simulation, tmp_path / "mean"))


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"w": torch.zeros(2)}, "steps"),
        ({"w": torch.zeros(3), "steps": torch.tensor(1)}, "'w'"),
        ({"w": torch.tensor([0.0, float("nan")]), "steps": torch.tensor(1)}, "not finite"),
    ],
)
def test_what_is_no_set_of_weights_is_an_error(found: Tensors, what: str) -> None:
    class Careless(Aggregator):
        def combine(self, updates: Any, weights: Any, old: Any) -> Tensors:
            return found

    with pytest.raises(MethodError, match=what):
        settled(Careless())


VALUES = [
    Mean(),
    Median(),
    TrimmedMean(0.1),
    Krum(hostile=0.1, keep=3),
    Clip(2, by="median", inner=Krum()),
    DifferentialPrivacy(clip=0.5, where="site"),
    FedAdam(lr=0.5, inner=Clip(3.0, inner=TrimmedMean())),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_aggregators_are_values(value: Aggregator) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert hash(value) == hash(pickle.loads(pickle.dumps(value)))
    assert repr(value).startswith(type(value).__name__)
    assert type(value).__name__ in aggregation.__all__


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: TrimmedMean(hostile=0.5), "aggregation.hostile = 0.5 is above 0.49"),
        (lambda: TrimmedMean(hostile="much"), "aggregation.hostile must be a number"),
        (lambda: Krum(keep=-1), "aggregation.keep = -1 is below 0"),
        (lambda: Nearest(bonus=11.0), "Nearest.bonus = 11.0 is above 10"),
        (lambda: Clip(0.0), "aggregation.clip = 0"),
        (lambda: Clip(1.0, by="mean"), "aggregation.clip_by"),
        (lambda: Clip(1.0, inner="mean"), "needs an aggregator as inner"),
        (lambda: Clip(1.0, inner=FedAdam()), "goes inside FedAdam"),
        (lambda: Clip(1.0, inner=Clip(2.0)), "goes inside Clip"),
        (lambda: Clip(1.0, inner=DifferentialPrivacy()), "its own clipping"),
        (lambda: FedAvgM(inner=FedAdam()), "one server optimiser"),
        (lambda: FedAdam(lr=0.0), "aggregation.lr = 0"),
        (lambda: FedAdam(tau=0.0), "aggregation.tau"),
        (lambda: DifferentialPrivacy(clip=0.0), "privacy.clip = 0"),
        (lambda: DifferentialPrivacy(where="home"), "privacy.where"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make()


def test_settings_and_objects_are_the_same() -> None:
    settings = AggregationSettings(
        rule="trimmed", hostile=0.3, clip=2.0, clip_by="median", optimiser="fedadam", lr=0.1, tau=0.5
    )
    wanted = FedAdam(lr=0.1, tau=0.5, inner=Clip(2.0, by="median", inner=TrimmedMean(0.3)))
    assert build_aggregator(settings, PrivacySettings()) == wanted
    assert build_aggregator(AggregationSettings(optimiser="fedavgm"), PrivacySettings(clip=0.5)) == FedAvgM(
        inner=DifferentialPrivacy(clip=0.5)
    )
    assert build_aggregator(AggregationSettings(), PrivacySettings()) == Mean()
