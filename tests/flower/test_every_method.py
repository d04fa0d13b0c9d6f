"""Every registered method through codec and client app, without a network: the same bits as inline."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from wireless import Known, Node, WirelessGrid, handled_by, sides

from proxyfl.data.dataset import Dataset
from proxyfl.data.partition import make_partition
from proxyfl.deploy.approval import leaving
from proxyfl.deploy.settings import Site
from proxyfl.engines.flower.codec import OWN, forms_of, header_of
from proxyfl.engines.flower.grid import Courier, FlowerEngine
from proxyfl.methods import create, recipes
from proxyfl.runs.settings import resolve
from proxyfl.runs.simulation import simulate
from proxyfl.runs.views import views_of
from proxyfl.testing.toy import toy_partition
from toybox import Stopped, Told, little_config, make_simulation, play, same_bits, same_state

NAMES = [recipe.name for recipe in recipes("clients")]
FIRST = set({recipe.method: recipe.name for recipe in reversed(recipes("clients"))}.values())
"""A method for each class of methods."""


def approved(config, form):
    """What leaves a site that approved the settings."""
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in form.items()}
    tree = {**config.to_tree(), "data": {**config.to_tree()["data"], "name": "folder:sites"}}
    config = resolve("", tree)
    return leaving(Site(**known, name="lyon", server="localhost:1"), config)[0]


def watched(handler, leaves):
    """A site's handler, no answer of which holds a tensor that was not approved."""

    def handle(kind, records):
        answer = handler(kind, records)
        if OWN in answer.array_records:
            asked = header_of(records).get("purpose", "train")
            forms = forms_of(answer.array_records[OWN])
            assert forms.items() <= leaves[asked].items()
        return answer

    return handle


def flower(config, simulation, folder):
    """The engine, with a site per client in this process."""
    places = sides(simulation, folder)
    method = create(config.method.name)
    asked = not method.oracle and not (config.labels.where == "server" and method.needs_labels)
    leaves = approved(config, places[0].form) if asked else {}
    nodes = {100 + k: Node(watched(handled_by(side), leaves)) for k, side in enumerate(places)}
    grid = WirelessGrid(nodes)
    setup = {**places[0].form, "config": json.loads(json.dumps(config.to_tree()))}
    return FlowerEngine(Courier(grid, Known(grid)), {**setup, "run": "0" * 16, "versions": 3}, 60.0), places


def settings(name):
    return little_config(name)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow)
        for name in NAMES
        if not create(name).oracle
    ],
)
def test_a_method_is_bit_equal_to_the_inline_engine(name, tmp_path):
    config, simulation = settings(name), make_simulation()
    inline, remote = Told(), Told()
    play(config, simulation, tmp_path / "inline", observers=[inline])
    engine, _ = flower(config, simulation, tmp_path)
    play(config, simulation, tmp_path / "server", observers=[remote], engine=lambda _: engine)
    assert [report.metrics["failed"] for report in remote.reports] == [{}, {}]
    for here, there in zip(inline.reports, remote.reports, strict=True):
        assert same_state(here.state, there.state)
        assert here.metrics["losses"] == there.metrics["losses"]
        assert here.metrics["traffic"] == there.metrics["traffic"]


def at_server(name, **settings):
    """Three clients without any label, and a server that trains on its own samples."""
    labels = np.arange(96) % 3
    vectors = np.random.default_rng(0).normal(size=(96, 5)) + 3 * np.eye(5)[labels]
    data = Dataset.of(vectors[:72], labels[:72], test=(vectors[72:], labels[72:]))
    config = little_config(name, scenario="server", clients=3, model__name="mlp", **settings)
    split = make_partition(data, clients=3, per_class=4, scheme="iid", where="server")
    return config, simulate(data, split, views_of(data, config.vectors))


AT_SERVER = [recipe.name for recipe in recipes("server") if not create(recipe.name).oracle]
ONCE = set({recipe.method: recipe.name for recipe in reversed(recipes("server"))}.values())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ONCE else pytest.mark.slow) for name in AT_SERVER]
)
def test_with_labels_at_the_server_a_method_is_bit_equal_too(name, tmp_path):
    """Sites without any label; the server trains on its own samples."""
    tau = {"method__tau": 0.3} if hasattr(create(name).parameters, "tau") else {}
    config, simulation = at_server(name, **tau)
    inline, remote = Told(), Told()
    play(config, simulation, tmp_path / "inline", observers=[inline])
    engine, _ = flower(config, simulation, tmp_path)
    play(config, simulation, tmp_path / "server", observers=[remote], engine=lambda _: engine)
    for here, there in zip(inline.reports, remote.reports, strict=True):
        assert there.metrics["failed"] == {}
        assert same_state(here.state, there.state)
        assert here.metrics["server"] == there.metrics["server"]
        assert here.metrics["traffic"] == there.metrics["traffic"]


def test_momentum_that_sites_and_server_keep_is_bit_equal_and_outlives_a_restart(tmp_path):
    settings = {"method__tau": 0.3, "rounds": 3}
    config, simulation = at_server("semifl", train__keep_momentum="all", **settings)
    inline, cut = play(config, simulation, tmp_path / "inline"), Told(stop_after=2)
    engine, _ = flower(config, simulation, tmp_path)
    with pytest.raises(Stopped):
        play(config, simulation, tmp_path / "server", observers=[cut], engine=lambda _: engine)
    again, _ = flower(config, simulation, tmp_path)
    state = cut.reports[-1].state
    ended = play(config, simulation, tmp_path / "server", state=state, engine=lambda _: again)
    assert same_state(ended, inline)
    forgets, _ = at_server("semifl", **settings)
    assert not same_bits(play(forgets, simulation, tmp_path / "forgets").weights, inline.weights)


@pytest.mark.parametrize("name", sorted({each.name for each in recipes("partial")} - set(NAMES)))
def test_methods_for_labels_at_some_sites_are_bit_equal_to_the_inline_engine(name, tmp_path):
    config = little_config(name, scenario="partial", per_round=4, method__warmup=0, method__tau=0.1)
    simulation = make_simulation((32, 0, 0, 0), (0, 32, 32, 32))
    inline = play(config, simulation, tmp_path / "inline")
    engine, _ = flower(config, simulation, tmp_path)
    assert same_state(play(config, simulation, tmp_path / "server", engine=lambda _: engine), inline)


def test_sites_that_hold_vectors_are_bit_equal_to_the_inline_engine(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(168, 5)) + np.repeat(np.eye(5)[:3], 56, 0)
    labels = np.repeat(np.arange(3), 56)
    data = Dataset.of(vectors[::2], labels[::2], test=(vectors[1::2], labels[1::2]))
    config = little_config("proxyfl", model__name="mlp", vectors__mix=0.4)
    simulation = simulate(data, toy_partition((6, 6, 3, 3), (15, 17, 17, 17)), views_of(data, config.vectors))
    inline = play(config, simulation, tmp_path / "inline")
    engine, _ = flower(config, simulation, tmp_path)
    assert same_state(play(config, simulation, tmp_path / "server", engine=lambda _: engine), inline)


def test_statistics_of_static_batch_norm_are_bit_equal_to_the_inline_engine(tmp_path):
    config, simulation = little_config("fixmatch-gpl", model__norm="static"), make_simulation()
    inline, remote = Told(), Told()
    play(config, simulation, tmp_path / "inline", observers=[inline])
    engine, _ = flower(config, simulation, tmp_path)
    play(config, simulation, tmp_path / "server", observers=[remote], engine=lambda _: engine)
    for here, there in zip(inline.reports, remote.reports, strict=True):
        assert there.metrics["statistics"] == here.metrics["statistics"] == {"images": 64, "failed": {}}
        assert same_state(here.state, there.state)


@pytest.mark.parametrize("name", [name for name in NAMES if create(name).oracle])
def test_a_method_that_needs_the_truth_is_refused_by_every_site(name, tmp_path):
    config, simulation = settings(name), make_simulation()
    engine, _ = flower(config, simulation, tmp_path)
    told = Told()
    with pytest.raises(Exception, match="true labels"):
        play(config, simulation, tmp_path / "server", observers=[told], engine=lambda _: engine)


def test_client_state_is_on_the_sites_disk_under_its_name_and_nowhere_else(tmp_path):
    config, simulation = little_config("fedloke", per_round=4), make_simulation()
    engine, places = flower(config, simulation, tmp_path)
    play(config, simulation, tmp_path / "server", engine=lambda _: engine)
    kept = {file.relative_to(tmp_path).parts[:3] for file in tmp_path.rglob("round-*.safetensors")}
    assert kept == {(side.name, side.name, "0" * 16) for side in places}
