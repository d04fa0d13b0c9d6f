"""Small federations of drawn images and a way to play them, for the tests of several rooms."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxyfl.core.config import Config
from proxyfl.core.state import ServerState
from proxyfl.data.stream import ViewSettings
from proxyfl.federation.client import ClientTrainer, numerics
from proxyfl.federation.loop import Engine, Observer, RoundReport, Server, play_round
from proxyfl.methods import recipes
from proxyfl.models import ConvNorm, register
from proxyfl.models.base import TrunkClassifier
from proxyfl.runs import build
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import Simulation
from proxyfl.testing.toy import toy_dataset, toy_partition

TINY: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "per_round": 2,
    "width": 1,
    "dtype": "fp32",
    "train__epochs": 1,
    "train__batch": 8,
}
"""A federation that takes a fraction of a second: 4 clients, 2 of them in each of 2 rounds."""

LITTLE = {**TINY, "model__name": "little"}
"""The same with a network that takes a third of the time, for promises that hold of any network. Programs of
their own do not know it.
"""


@register
class Little(TrunkClassifier):
    """One of each of ResNet-8's layers."""

    def __init__(self, classes: int, channels: int = 3, width: int = 1) -> None:
        super().__init__()
        stem = ConvNorm(channels, 8 * width, 3, stride=2)
        layers = OrderedDict(stem=stem, relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(2), flatten=nn.Flatten())
        self.trunk = nn.Sequential(layers)
        self.classifier = nn.Linear(32 * width, classes)


def every_method(where: str = "clients") -> list[Any]:
    """The registered methods as parameters of a test. Recipes that bring neither a class nor an add-on of
    their own are for the slow tests.
    """
    known: set[object] = set()
    found = []
    for recipe in recipes(where):
        brings = {recipe.method, *recipe.addons} - known
        found.append(pytest.param(recipe.name, marks=[] if brings else pytest.mark.slow))
        known |= brings
    return found


class Told:
    """An observer that remembers everything it is told; ``stop_after`` raises once that round is over."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.reports: list[RoundReport] = []
        self.stop_after = stop_after

    def round_started(self, round: int, clients: list[int]) -> None:
        self.calls.append(("started", (round, clients)))

    def answered(self, answer: Any) -> None:
        self.calls.append(("answered", answer))

    def round_finished(self, report: RoundReport) -> None:
        self.calls.append(("finished", report.state.round))
        self.reports.append(report)
        if report.state.round == self.stop_after:
            raise Stopped(report.state.round)


class Stopped(Exception):
    """What an observer raises to end a run in the middle."""


def make_simulation(
    labelled: Sequence[int] = (6, 6, 6, 6),
    unlabelled: Sequence[int] = (26, 26, 26, 26),
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 8,
    seed: int = 0,
) -> Simulation:
    """Drawn images, one bright stripe per class, dealt to clients of the given sizes."""
    count = sum(labelled) + sum(unlabelled)
    dataset = toy_dataset(count, classes=classes, channels=channels, size=size, seed=seed)
    views = ViewSettings(False, dataset.mean, dataset.std)
    return Simulation(dataset, toy_partition(labelled, unlabelled), 1, views, views)


def tiny_config(method: str = "proxyfl", preset: str = "digits", **settings: Any) -> Config:
    return resolve(preset, from_short({**TINY, **settings}), {"method": {"name": method}})


def little_config(method: str = "proxyfl", **settings: Any) -> Config:
    return tiny_config(method, **{**LITTLE, **settings})


def assemble(
    folder: Path | str, config: Config, simulation: Simulation, workers: int | None = None
) -> tuple[Server, ClientTrainer]:
    """The two halves of a federation, whose clients keep their state in a folder."""
    federation = build.assemble(config, simulation, workers=workers)
    federation.settle(Path(folder))
    return federation.server, federation.trainer


def run_rounds(server: Server, state: ServerState, observers: Sequence[Observer] = ()) -> ServerState:
    """The rounds that are left."""
    while state.round < server.settings.rounds:
        state = play_round(server, state, tuple(observers))
    return state


def play(
    config: Config,
    simulation: Simulation,
    folder: Path,
    *,
    state: ServerState | None = None,
    observers: Sequence[Observer] = (),
    engine: Callable[[Engine], Engine] | None = None,
) -> ServerState:
    """The rounds that are left, without a run directory around them.

    ``folder`` is for client state; ``engine`` may put something around the inline engine.
    """
    server, trainer = assemble(folder, config, simulation, workers=0)
    with numerics(config.compute):
        if engine is not None:
            server.engine = engine(server.engine)
        if state is None:
            state = server.start(trainer.initial_weights())
        return run_rounds(server, state, observers)


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def same_state(a: ServerState, b: ServerState) -> bool:
    return same_bits(a.to_tensors(), b.to_tensors())


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie has)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"
