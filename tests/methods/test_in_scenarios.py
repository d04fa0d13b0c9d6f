"""Every method in every scenario: it trains there or says why it cannot; the server's own training."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import proxyfl
from proxyfl.core.dealing import SCENARIOS
from proxyfl.core.errors import ConfigError
from proxyfl.methods import create, recipes, registry
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.simulation import Simulation, prepare
from toybox import TINY, Stopped, Told, make_simulation, play, same_bits, same_state, tiny_config

OTHERS = SCENARIOS[1:]
EVERY = [recipe.name for recipe in recipes()]
CLASSES = {where: {r.method: r.name for r in reversed(recipes(where))}.values() for where in OTHERS}
"""A method for each class of methods that is defined there."""

QUICK = ("semifl", "proxyfl")
"""Methods whose two rounds on images are played each time; the others train on vectors below."""


def settings(name: str, where: str, **more: Any) -> dict[str, Any]:
    tau = {"method__tau": 0.2} if hasattr(create(name).parameters, "tau") else {}
    tune = {"method__gpt__epochs": 2} if "gpt" in {part.name for part in create(name).parts} else {}
    rounds = getattr(create(name).parameters, "warmup", True)  # FlexMatch's is a switch
    warm = {"method__warmup": 0} if not isinstance(rounds, bool) else {}
    return {**tau, **tune, **warm, "subset": 160, "scenario": where, **more}


@functools.cache
def digits(where: str) -> Simulation:
    return prepare(tiny_config("fedavg-sl", subset=160, scenario=where))


@functools.cache
def clouds(where: str) -> tuple[proxyfl.Dataset, proxyfl.Partition]:
    """Points around three corners of a cube, dealt to three clients."""
    labels = np.arange(96) % 3
    vectors = np.random.default_rng(0).normal(size=(96, 5)) + 3 * np.eye(5)[labels]
    data = proxyfl.Dataset.of(vectors[:72], labels[:72], test=(vectors[72:], labels[72:]))
    return data, proxyfl.partition(data, clients=3, per_class=4, scheme="iid", where=where)


def trusting(name: str) -> proxyfl.Method:
    """The method at a threshold that makes it use its unlabelled samples from the start."""
    _, values = registry.resolve(name, {})
    tuned = {"gpt": {"epochs": 2}} if "gpt" in values else {}
    return create(name, {**({"tau": 0.3} if "tau" in values else {}), **tuned})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "feddure" else name for name in EVERY]
)
def test_a_method_trains_in_a_scenario_or_is_refused_with_the_reason(name: str) -> None:
    """With labels at every client, :mod:`test_contract` trains it."""
    homes = [where for where in SCENARIOS if registry.defined(create(name), where)]
    assert homes
    for where in SCENARIOS:
        data, split = clouds(where)
        options: dict[str, Any] = {"method": trusting(name), "rounds": 1, "per_round": 3, "workers": 0}
        options["train"] = proxyfl.Train(epochs=2, batch=8, lr=0.1)
        if where not in homes:
            words = f"is not defined with labels.where = '{where}': [a-z].{{20,}}; use "
            with pytest.raises(ConfigError, match=words):
                proxyfl.Federation(data, split, **options)
        elif where != "clients":
            federation = proxyfl.Federation(data, split, dtype="fp32", **options)
            before = {key: value.clone() for key, value in federation.state.weights.items()}
            (report,) = federation.rounds()
            assert report.metrics["failed"] == {}
            assert all(math.isfinite(loss) for loss in report.losses.values())
            assert ("server" in report.metrics) == (where == "server")
            assert not same_bits(before, federation.state.weights)


@pytest.mark.parametrize("addon", ["icpl", "gpt"])
@pytest.mark.parametrize(
    ("parent", "where"),
    [("semifl", "server"), ("flfl", "server"), ("cbafed", "partial"), ("rscfed", "partial")],
)
def test_both_parts_of_proxyfl_take_effect_on_methods_of_other_scenarios(
    parent: str, where: str, addon: str
) -> None:
    """With labels at every client, :mod:`test_contract` attaches every add-on."""
    data, split = clouds(where)
    ends = []
    for strength in (0, 5):
        given = {"icpl": {"weight": float(strength)}} if addon == "icpl" else {"gpt": {"epochs": strength}}
        warm = {"warmup": 0} if where == "partial" else {}
        federation = proxyfl.Federation(
            data, split, method=create(f"{parent}+{addon}", {"tau": 0.3, **warm, **given}), rounds=1,
            per_round=3, workers=0, dtype="fp32", network="mlp", width=1,
            train=proxyfl.Train(epochs=2, batch=8, lr=0.1),
        )  # fmt: skip
        ends.append(federation.run())
    off, on = (end.state.weights for end in ends)
    assert not torch.equal(off["classifier.weight"], on["classifier.weight"])
    if addon == "icpl":
        assert ends[1].history[-1].losses["icpl"] > 0
    assert all(report.metrics["failed"] == {} for end in ends for report in end.history)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        pytest.param(name, where, marks=[] if name in QUICK else [pytest.mark.slow])
        for where in OTHERS
        for name in CLASSES[where]
    ],
)
def test_two_rounds_of_every_method_that_is_defined_there(name: str, where: str, tmp_path: Path) -> None:
    told = Told()
    config = tiny_config(name, **settings(name, where, per_round=4))
    state = play(config, digits(where), tmp_path, observers=[told])
    assert all(torch.isfinite(value).all() for value in state.weights.values() if value.is_floating_point())
    for report in told.reports:
        assert report.metrics["failed"] == {}
        assert len(report.metrics["clients"]) + len(report.metrics["idle"]) == 4
        assert ("server" in report.metrics) == (where == "server")
    first, second = (report.state.weights for report in told.reports)
    assert not same_bits(first, second)


@pytest.mark.parametrize(
    ("name", "where", "reason"),
    [
        ("fedavg", "server", "clients, which have none .server-only"),
        ("fedprox", "server", "use 'clients' or 'partial', or a method from"),
        ("feddure", "server", "regulators"),
        ("fedloke", "server", "private model"),
        ("proto-labeled", "server", "prototypes need labelled images"),
        ("server-only", "clients", "the server holds no labelled images"),
        ("semifl", "partial", "the server holds no labelled images"),
        ("flfl", "clients", "the server holds no labelled images"),
        ("cbafed", "clients", "for all their images or for none"),
        ("rscfed", "server", "it warms up on labelled images"),
    ],
)
def test_elsewhere_a_method_is_refused_before_round_1(name: str, where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"labels.where = '{where}': .*{reason}"):
        tiny_config(name, scenario=where)
    assert name not in {recipe.name for recipe in recipes(where)}
    labels = [0, 1] * 40
    data = proxyfl.Dataset.of(torch.zeros(80, 1, 8, 8), labels, test=(torch.zeros(4, 1, 8, 8), [0, 1, 0, 1]))
    split = proxyfl.partition(data, clients=4, per_class=10, scheme="iid", where=where)
    with pytest.raises(ConfigError, match="is not defined with"):
        proxyfl.Federation(data, split, method=name)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        (name, where)
        for where, names in (
            ("partial", ("proxyfl", "cbafed", "rscfed", "rscfed+gpt")),
            ("server", ("semifl", "fedmatch", "softmatch", "flfl+proxyfl")),
        )
        for name in names
    ],
)
@pytest.mark.slow
def test_resumed_and_with_workers_the_bits_are_the_same(name: str, where: str, tmp_path: Path) -> None:
    given = {**TINY, **settings(name, where, model__norm="static", per_round=4)}
    if name == "softmatch":
        given |= {"method__softmatch__statistics": "client", "method__softmatch__ema": 0.5}
    runs = []
    for folder, workers in (("inline", 0), ("workers", 2)):
        proxyfl.Experiment(name, "digits", **given).run(tmp_path / folder, workers=workers)
        runs.append(tmp_path / folder)
    with pytest.raises(Stopped):
        proxyfl.Experiment(name, "digits", **given).run(tmp_path / "stopped", [Told(stop_after=1)])
    proxyfl.resume(tmp_path / "stopped")
    states = [checkpoint.load_newest(RunDirectory(run))[0].state for run in (*runs, tmp_path / "stopped")]
    assert same_state(states[0], states[1])
    assert same_state(states[0], states[2])
    assert proxyfl.Run(runs[0]).metrics == proxyfl.Run(tmp_path / "stopped").metrics


def test_labels_of_unlabelled_images_are_out_of_reach_of_the_server(tmp_path: Path) -> None:
    simulation = digits("server")
    pool = torch.from_numpy(simulation.partition.unlabelled.values)
    labels = simulation.dataset.train.labels
    before = labels[pool].clone()
    config = tiny_config("semifl", **settings("semifl", "server"))
    true = play(config, simulation, tmp_path)
    try:
        labels[pool] = before.roll(1)
        assert same_state(true, play(config, simulation, tmp_path))
    finally:
        labels[pool] = before


def test_validation_images_are_the_servers_own(tmp_path: Path) -> None:
    told = Told()
    config = tiny_config("semifl", **settings("semifl", "server", rounds=1, data__validation=0.2))
    simulation = prepare(config)
    play(config, simulation, tmp_path, observers=[told])
    assert len(simulation.partition.server_validation) + len(simulation.partition.server) == 20
    assert 0 <= told.reports[0].metrics["validation"]["accuracy"] <= 1


def test_the_server_alone_is_plain_training_on_its_images(tmp_path: Path) -> None:
    """Nothing is sent, and the weights are those of SGD over the server's images."""
    told = Told()
    config = tiny_config("server-only", subset=160, scenario="server", rounds=1, train__epochs=2)
    state = play(config, digits("server"), tmp_path, observers=[told])
    metrics = told.reports[0].metrics
    assert (metrics["clients"], len(metrics["idle"])) == ([], 2)
    assert metrics["traffic"]["bytes_up"] == metrics["traffic"]["bytes_down"] == 0
    held = len(digits("server").partition.server)
    assert metrics["server"]["steps"] == 2 * (held // 8)
    assert 0 < metrics["server"]["loss"] < 5
    assert state.round == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_semifl_learns_more_than_the_server_alone(tmp_path: Path) -> None:
    """On digits, with 15 rounds of the preset."""
    found = {}
    for name in ("semifl", "server-only"):
        run = proxyfl.Experiment(name, "digits", scenario="server").run(tmp_path / name)
        found[name] = run.summary.mean_last
    assert found["server-only"] > 0.85
    assert found["semifl"] > found["server-only"] + 0.005


def test_addons_do_not_mind_clients_that_sit_out(tmp_path: Path) -> None:
    told = Told()
    config = tiny_config("semifl+icpl", method__tau=1.0, method__strict=True, subset=160, scenario="server")
    play(config, digits("server"), tmp_path, observers=[told])
    assert [(len(r.metrics["idle"]), r.metrics["failed"]) for r in told.reports] == [(2, {}), (2, {})]


@pytest.mark.parametrize("name", ["cbafed", "rscfed+icpl"])
def test_odd_clients_where_some_have_labels(name: str, tmp_path: Path) -> None:
    """Two with labels, one of them with a single image; two without, one with a single image."""
    told = Told()
    config = tiny_config(name, **settings(name, "partial", per_round=4, rounds=1))
    state = play(config, make_simulation((8, 0, 1, 0), (0, 1, 0, 32), classes=2), tmp_path, observers=[told])
    assert (sorted(told.reports[0].clients), told.reports[0].metrics["failed"]) == ([0, 1, 2, 3], {})
    assert all(torch.isfinite(value).all() for value in state.weights.values() if value.is_floating_point())
