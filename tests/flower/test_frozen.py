"""Federations of sites that train a part of the network: what is frozen goes out once, or not at all."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from wireless import Known, Node, WirelessGrid, handled_by, sides

from proxyfl.core.state import within
from proxyfl.engines.flower.codec import task_records
from proxyfl.engines.flower.frozen import FROZEN, frozen_part
from proxyfl.engines.flower.grid import Courier, FlowerEngine
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import play_round
from proxyfl.runs import build
from toybox import Told, little_config, make_simulation, run_rounds, same_state


def federation(folder, start=None, **partly):
    """Settings, simulation and server, its engine and the sites."""
    config = little_config("proxyfl", rounds=3, per_round=4, **partly)
    simulation = make_simulation()
    built = build.assemble(config, simulation, start=start, workers=0)
    built.settle(folder / "server")
    places = sides(simulation, folder)
    grid = WirelessGrid({100 + k: Node(handled_by(side)) for k, side in enumerate(places)})
    frozen = frozen_part(built.trainer)
    setup = {**places[0].form, "config": json.loads(json.dumps(config.to_tree())), "run": "0" * 16}
    setup |= {"versions": 3, **frozen.header}
    return built, FlowerEngine(Courier(grid, Known(grid)), setup, 60.0, None, frozen)


def played(built, engine=None):
    told = Told()
    if engine is not None:
        built.server.engine = engine
    with numerics(built.config.compute):
        run_rounds(built.server, built.state, [told])
    return told.reports


@pytest.fixture
def sent(monkeypatch):
    """The parts of every task, by client."""
    found = []

    def noted(task, broadcast, setup, more=None):
        found.append((task.round, task.client, sorted(more or {})))
        return task_records(task, broadcast, setup, more)

    monkeypatch.setattr("proxyfl.engines.flower.grid.task_records", noted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("started", [False, True])
def test_the_same_bits_as_inline_and_frozen_tensors_once(started, sent, tmp_path):
    partly = {"model__lora_rank": 2, "model__trainable": "head"}
    start = None
    if started:
        start = build.assemble(little_config("proxyfl", seed=5), make_simulation(), workers=0).trainer.plain
    here = played(federation(tmp_path / "inline", start, **partly)[0])
    there = played(*federation(tmp_path / "sites", start, **partly))
    assert [report.metrics["failed"] for report in there] == [{}, {}, {}]
    assert all(same_state(ours.state, theirs.state) for ours, theirs in zip(here, there, strict=True))
    assert {round for round, _, parts in sent if parts == [FROZEN]} == ({1} if started else set())
    assert len([1 for *_, parts in sent if parts]) == (4 if started else 0)
    kept = list((tmp_path / "sites").rglob("frozen.safetensors"))
    assert len(kept) == (4 if started else 0)


def test_a_site_that_lost_them_gets_them_again(sent, tmp_path):
    start = build.assemble(little_config("proxyfl", seed=5), make_simulation(), workers=0).trainer.plain
    built, engine = federation(tmp_path, start, model__trainable="head")
    told = Told()
    with numerics(built.config.compute):
        built.server.engine = engine
        state = play_round(built.server, built.state, (told,))
        next(tmp_path.rglob("frozen.safetensors")).write_bytes(b"gone")
        run_rounds(built.server, state, [told])
    failed = [report.metrics["failed"] for report in told.reports]
    assert [len(found) for found in failed] == [0, 1, 0]
    assert "the frozen tensors are not here yet" in next(iter(failed[1].values()))
    assert [round for round, _, parts in sent if parts] == [1, 1, 1, 1, 3]


def test_others_than_those_the_header_names_are_refused(tmp_path):
    built, engine = federation(tmp_path, model__trainable="head")
    engine.setup = {**engine.setup, FROZEN: "0" * 64}
    with pytest.raises(Exception, match="not here yet"):
        played(built, engine)


def test_only_trained_tensors_are_broadcast(tmp_path):
    built, _ = federation(tmp_path, model__trainable="head")
    names = within("weights", built.state.weights)
    assert all(name.startswith(("weights/classifier.", "weights/heads.")) for name in names)
