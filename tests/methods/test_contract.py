"""What every registered method must keep, whoever wrote it. New methods are covered by being registered."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import proxyfl
from proxyfl.core.config import Config
from proxyfl.core.errors import MethodError
from proxyfl.core.settings import FIDELITIES
from proxyfl.core.state import Failure, ServerState, Task, Tensors, Update, size_in_bytes
from proxyfl.data.dataset import Split
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.loop import Engine
from proxyfl.methods import create, recipes, registry
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.simulation import Simulation, prepare
from toybox import (
    LITTLE,
    Stopped,
    Told,
    every_method,
    little_config,
    make_simulation,
    play,
    same_bits,
    same_state,
)

NAMES = [recipe.name for recipe in recipes("clients")]
FIRST = set({recipe.method: recipe.name for recipe in reversed(recipes("clients"))}.values())
"""A method for each class of methods: the others differ from it in parameters and add-ons."""

PARENTS = ("fedavg", "fixmatch-lpl", "sage", "fedmatch")
"""Methods that the quick tests attach every add-on to: without pseudo-labels, with hard and soft ones, with a
step of its own.
"""

ORACLES = {"fedavg-sl", "gpl-all-corrected"}
"""Methods that are given the true labels of unlabelled images by definition."""

NEUTRAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "icpl": ({"weight": 0.0}, {"weight": 1.0}),
    "gpt": ({"epochs": 0}, {"epochs": 5}),
    "prox": ({"weight": 0.0}, {"weight": 1.0}),
    "prior": ({"fixed": True}, {"fixed": False}),
    "freematch": ({"fairness": 0.0}, {"fairness": 1.0}),
    "softmatch": (
        {"sigmas": 0.0, "statistics": "client", "ema": 0.0},
        {"sigmas": 100.0, "statistics": "client", "ema": 0.0},
    ),
}
"""For add-ons, settings without effect and settings that must have one; others are told by their weight."""


THRESHOLDS: dict[str, dict[str, Any]] = {
    **{name: {"method__tau": 0.12} for name in ("fixmatch-gpl", "proto", "proto-all", "proto-labeled")},
    "flexmatch": {"method__tau": 0.17},
    "feddb": {"method__tau": 0.105},
    "fedloke": {"method__delta": 2.2},
    "fedmatch": {"method__confidence": 0.2},
    **{name: {"method__teacher": "global"} for name in ("freematch", "softmatch")},
}
"""Thresholds that a network of two rounds reaches for some images and not for others, where not 0.2."""

CHOOSY = [
    *THRESHOLDS,
    *("fixmatch-lpl", "fedprox+fixmatch", "fedlabel", "sage"),
    *("proxyfl", "gpt-only", "icpl-only", "icpl-top1", "icpl-top5", "icpl-uniform"),
]


def slow_unless_first(name: str) -> list[pytest.MarkDecorator]:
    return [] if name in FIRST else [pytest.mark.slow]


def settings_for(name: str, *, tau: float | None = None, **more: Any) -> dict[str, Any]:
    """A threshold within reach, and little proxy tuning."""
    _, parameters = registry.resolve(name, {})
    options: dict[str, Any] = {"method__tau": 0.2} if "tau" in parameters else {}
    options |= THRESHOLDS.get(name, {})
    if tau is not None and "tau" in parameters:
        options["method__tau"] = tau
    if "gpt" in parameters:
        options["method__gpt__epochs"] = 2
    return {**options, "subset": 120, **more}


def config_for(name: str, **more: Any) -> Config:
    return little_config(name, **settings_for(name, **more))


@functools.cache
def digits() -> Simulation:
    """120 real images at four clients: the same for every method."""
    return prepare(config_for("fedavg"))


class Listening:
    """Passes tasks and answers on, and remembers both."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tasks: list[Task] = []
        self.answers: list[Update | Failure] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        def noted() -> Iterator[Task]:
            for task in tasks:
                self.tasks.append(task)
                yield task

        for answer in self.engine.run(noted()):
            self.answers.append(answer)
            yield answer


@dataclasses.dataclass
class Played:
    state: ServerState
    told: Told
    engine: Listening


def played(config: Config, simulation: Simulation, folder: Path) -> Played:
    told, engines = Told(), []

    def listen(engine: Engine) -> Engine:
        engines.append(Listening(engine))
        return engines[0]

    state = play(config, simulation, folder, observers=[told], engine=listen)
    return Played(state, told, engines[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contract")


@pytest.fixture(scope="module")
def first(folder: Path) -> Any:
    """The method's two rounds on digits, played once for all tests."""
    return functools.cache(lambda name: played(config_for(name), digits(), folder / name / "first"))


def finite(tensors: Tensors) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())


def without_truth(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics but for what compares decisions with the truth."""
    knows = {"accuracy", "selected_accuracy", "low_accuracy", "set_recall"}
    pseudo = {name: value for name, value in metrics["pseudo"].items() if name not in knows}
    return {**metrics, "pseudo": pseudo}


@pytest.mark.parametrize("name", every_method())
def test_two_rounds_finish_with_finite_weights(name: str, first: Any) -> None:
    found = first(name)
    assert found.state.round == 2
    assert finite(found.state.to_tensors())
    for report in found.told.reports:
        assert report.metrics["failed"] == {}
        assert len(report.metrics["clients"]) + len(report.metrics["idle"]) == 2
        assert all(math.isfinite(value) for value in report.metrics["losses"].values())
    start = found.engine.tasks[0].weights
    assert not same_bits(found.state.weights, start)


@pytest.mark.parametrize("name", CHOOSY)
def test_thresholds_leave_images_on_both_sides(name: str, first: Any) -> None:
    found = [report.metrics["pseudo"] for report in first(name).told.reports]
    assert any(0 < pseudo["selected"] < pseudo["visits"] for pseudo in found), found


@pytest.mark.parametrize("name", every_method())
def test_same_seed_same_bits_and_another_seed_other_bits(name: str, first: Any, folder: Path) -> None:
    torch.rand(3)  # whatever anyone draws elsewhere
    again = played(config_for(name), digits(), folder / name / "again")
    assert same_state(again.state, first(name).state)
    assert [r.metrics for r in again.told.reports] == [r.metrics for r in first(name).told.reports]
    other = played(config_for(name, seed=2, rounds=1), digits(), folder / name / "other")
    assert not same_bits(other.state.weights, first(name).told.reports[0].state.weights)


class StopsInside(Told):
    """Raises in the middle of a round, when the first of its clients has answered."""

    def answered(self, answer: Any) -> None:
        assert isinstance(answer, Update)
        raise Stopped(answer.client)


@pytest.mark.parametrize("name", every_method())
def test_stopped_and_resumed_gives_the_same_bits(name: str, first: Any, folder: Path) -> None:
    where = folder / name / "stopped"
    experiment = proxyfl.Experiment(name, "digits", **{**LITTLE, **settings_for(name)})
    with pytest.raises(Stopped):
        experiment.run(where, [Told(stop_after=1)])
    with pytest.raises(Stopped):
        proxyfl.resume(where, [StopsInside()])
    assert len(proxyfl.Run(where).metrics) == 1
    saved = [file for file in RunDirectory(where).clients.rglob("round-00000002.*") if file.stat().st_size]
    assert len(saved) == (1 if create(name).keeps_state else 0)  # by the client that had answered
    run = proxyfl.resume(where)
    saved, warnings = checkpoint.load_newest(RunDirectory(where))
    assert warnings == []
    assert same_state(saved.state, first(name).state)
    expected = [report.metrics for report in first(name).told.reports]
    assert run.metrics == expected


@pytest.mark.parametrize("name", every_method())
def test_state_and_extras_survive_safetensors(name: str, first: Any) -> None:
    found = first(name)
    state = found.state
    assert same_state(ServerState.from_tensors(load(save(state.to_tensors()))), state)
    for task in found.engine.tasks:
        for tensors in (task.weights, task.extras, task.personal, task.carry):
            assert same_bits(load(save(tensors)), tensors)
    for update in found.engine.answers:
        assert isinstance(update, Update)
        for tensors in (update.weights, update.extras, update.carry):
            assert same_bits(load(save(tensors)), tensors)


@pytest.mark.parametrize("name", every_method())
def test_what_a_client_keeps_is_on_its_shelf(
    name: str, first: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not create(name).keeps_state:
        first(name)
        assert list(RunDirectory(folder / name / "first").clients.rglob("*.safetensors")) == []
        return
    run = RunDirectory(folder / name / "store")
    handed: dict[tuple[int, int], Tensors] = {}
    usual = ClientStore.save

    def noted(store: ClientStore, client: int, round: int, tensors: Tensors, base: int = 0) -> None:
        if store.folder == run.clients:
            handed[client, round] = {key: value.detach().clone() for key, value in tensors.items()}
        usual(store, client, round, tensors, base)

    monkeypatch.setattr(ClientStore, "save", noted)
    state = played(config_for(name), digits(), run.path).state
    assert state.versions
    for client, round in state.versions.items():
        kept = ClientStore(run.clients).load(client, round)
        assert sum(value.numel() for value in kept.values()) > 0
        assert same_bits(kept, handed[client, round])
        assert same_bits(load(save(kept)), kept)
        assert finite(kept)


def with_permuted_truth(simulation: Simulation) -> Simulation:
    """Other true labels for the unlabelled images; the labelled ones keep theirs."""
    train = simulation.dataset.train
    index = torch.from_numpy(simulation.partition.unlabelled.values)
    labels = train.labels.clone()
    labels[index] = labels[index].roll(1)
    assert not torch.equal(labels, train.labels)
    dataset = dataclasses.replace(simulation.dataset, train=Split(train.images, labels))
    return dataclasses.replace(simulation, dataset=dataset)


@pytest.mark.parametrize("name", every_method())
def test_true_labels_of_unlabelled_images_are_out_of_reach(name: str, first: Any, folder: Path) -> None:
    assert create(name).oracle == (name in ORACLES)
    permuted = played(config_for(name), with_permuted_truth(digits()), folder / name / "permuted")
    if name in ORACLES:
        assert not same_state(permuted.state, first(name).state)
        return
    assert same_state(permuted.state, first(name).state)
    pairs = zip(permuted.told.reports, first(name).told.reports, strict=True)
    for ours, theirs in pairs:
        assert without_truth(ours.metrics) == without_truth(theirs.metrics)
    if first(name).told.reports[-1].metrics["pseudo"]:
        assert [r.metrics["pseudo"] for r in permuted.told.reports] != [
            r.metrics["pseudo"] for r in first(name).told.reports
        ]


ODD = {"labelled": (8, 0, 8, 1), "unlabelled": (24, 32, 0, 0)}
"""A usual client, one without labels, one without unlabelled images, one with a single image."""


@pytest.mark.parametrize(
    ("name", "channels", "classes"),
    [
        *((name, 1, 2) for name in NAMES),
        *(pytest.param(name, 3, 100, marks=slow_unless_first(name)) for name in NAMES),
    ],
)
def test_odd_clients_channels_and_classes(name: str, channels: int, classes: int, folder: Path) -> None:
    simulation = make_simulation(**ODD, channels=channels, classes=classes)
    config = config_for(name, per_round=4, rounds=1, train__pool=("all", "unlabelled")[channels == 3])
    found = played(config, simulation, folder / name / f"odd{classes}")
    metrics = found.told.reports[0].metrics
    assert metrics["failed"] == {}
    assert finite(found.state.to_tensors())
    expected_idle = [1] if create(name).needs_labels else []
    assert metrics["idle"] == expected_idle
    assert sorted(metrics["clients"] + metrics["idle"]) == [0, 1, 2, 3]
    assert len(metrics["per_class"]) == classes


@pytest.mark.parametrize("name", every_method())
def test_every_fidelity_plays(name: str, folder: Path) -> None:
    for fidelity in FIDELITIES[1:]:
        config = config_for(name, fidelity=fidelity, rounds=1)
        found = played(config, digits(), folder / name / fidelity)
        assert found.told.reports[0].metrics["failed"] == {}
        assert finite(found.state.to_tensors())
        leaks = fidelity == "code" and name != "fedmatch"  # whose own optimisers have no momentum
        assert bool(found.state.carry) == leaks


@pytest.mark.parametrize("name", every_method())
def test_bytes_recorded_are_those_of_the_tensors(name: str, first: Any) -> None:
    found = first(name)
    for report in found.told.reports:
        round, traffic = report.metrics["round"], report.metrics["traffic"]
        tasks = [task for task in found.engine.tasks if task.round == round]
        updates = [update for update in found.engine.answers if update.round == round]
        down = sum(
            size_in_bytes(t.weights) + size_in_bytes(t.extras) + size_in_bytes(t.personal) for t in tasks
        )
        up = sum(size_in_bytes(u.weights) + size_in_bytes(u.extras) for u in updates)
        assert (traffic["bytes_down"], traffic["bytes_up"]) == (down, up)
        once = size_in_bytes(tasks[0].weights) + size_in_bytes(tasks[0].extras) if tasks else 0
        assert traffic["bytes_down_once"] == once + sum(size_in_bytes(task.personal) for task in tasks)
        sent = [tensor for u in updates for tensor in (*u.weights.values(), *u.extras.values())]
        assert traffic["numbers_up"] == sum(tensor.numel() for tensor in sent)
        assert sum(traffic["down"].values()) == down
        assert sum(traffic["up"].values()) == up
        assert set(traffic["up"]) == {"trunk", "classifier", "heads", "extras"}


@pytest.mark.parametrize("name", every_method())
def test_what_is_sent_and_kept_is_declared(name: str, first: Any) -> None:
    found, method = first(name), create(name)
    heads = found.told.reports[0].metrics["traffic"]["up"]["heads"]
    assert (heads > 0) == method.needs_heads
    senders = {key.split("/")[0] for update in found.engine.answers for key in update.extras}
    assert senders <= {part.name for part in method.parts if re.search("up|both ways", part.sends)}
    tasks = found.engine.tasks
    received = {key.split("/")[0] for task in tasks for key in (*task.extras, *task.personal)}
    assert received <= {part.name for part in method.parts if re.search("down|both ways", part.sends)}
    assert bool(found.state.versions) == method.keeps_state


def refusal(name: str) -> str:
    try:
        create(name)
    except MethodError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "addon"),
    [
        pytest.param(name, addon, marks=[] if name in PARENTS else pytest.mark.slow)
        for name, addon in itertools.product(NAMES, registry.addons())
    ],
)
def test_an_addon_takes_effect_or_is_refused(name: str, addon: str, folder: Path) -> None:
    full = registry.find(f"{name}+{addon}").name
    reason = refusal(full)
    if reason:
        needed = "|".join((addon, *(needed.name for needed in registry.addons()[addon].needs)))
        assert re.search(rf"cannot carry \+({needed}): \S+", reason)
        return
    off, on = NEUTRAL.get(addon, NEUTRAL["prox"])
    states = []
    for choice in (off, on):
        options = {f"method__{addon}__{key}": value for key, value in choice.items()}
        rounds = 1 if addon in NEUTRAL else 2  # some need what the first round leaves behind
        config = config_for(full, rounds=rounds, tau=0.05, **options)
        states.append(played(config, digits(), folder / full.replace("+", "_") / addon).state)
    without, with_addon = states
    changed = {
        key for key in without.weights if not torch.equal(without.weights[key], with_addon.weights[key])
    }
    if addon == "gpt":
        assert changed == {"classifier.weight"}
    elif addon == "prior":
        assert not torch.equal(without.extras["prior/classes"], with_addon.extras["prior/classes"])
    else:
        assert "trunk.stem.conv.weight" in changed
