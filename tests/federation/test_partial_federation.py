"""Federations that train a part of the network: what travels, the same bits everywhere, whole models."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from proxyfl import Experiment
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import ServerState
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import play_round
from proxyfl.methods import recipes
from proxyfl.runs import build, repair
from toybox import Told, assemble, make_simulation, play, same_bits, same_state, tiny_config

HEAD = {"model__trainable": "head"}
LORA = {"model__lora_rank": 2, "model__trainable": "head"}
LAST = {"model__trainable": "trunk.stage3.*,classifier.*", "model__norm": "group"}
QUICK = ("fedavg", "fedloke", "feddure", "proxyfl")
"""A round of weights alone, one with two models at each client, one with gradients of its own, the whole."""
FIRST = sorted(set({recipe.method: recipe.name for recipe in reversed(recipes("clients"))}.values()))


def states(config, folder, workers, stop=False):
    """The state after each round; with ``stop`` it goes through a file between them."""
    simulation, told = make_simulation(), Told()
    server, trainer = assemble(folder, config, simulation, workers=workers)
    with numerics(config.compute):
        state = server.start(trainer.initial_weights())
        try:
            for _ in range(config.federation.rounds):
                if stop:
                    server.engine.close()
                    server, _ = assemble(folder, config, simulation, workers=workers)
                    state = ServerState.from_tensors(load(save(state.to_tensors())))
                state = play_round(server, state, (told,))
        finally:
            server.engine.close()
    return [report.state for report in told.reports]


PARTLY = {"head": HEAD, "lora": LORA, "last": LAST, "static": {"model__norm": "static"}}


@pytest.mark.parametrize(
    ("method", "partly"),
    [
        pytest.param("proxyfl", "head", marks=pytest.mark.slow),
        ("proxyfl", "lora"),
        pytest.param("fedloke", "lora", marks=pytest.mark.slow),
        ("fedavg", "last"),
        ("proxyfl", "static"),
    ],
)
def test_resumed_rounds_give_the_same_bits(method, partly, tmp_path):
    config = tiny_config(method, **PARTLY[partly])
    whole, resumed = (states(config, tmp_path / str(stop), 0, stop) for stop in (False, True))
    assert all(map(same_state, whole, resumed))


@pytest.mark.slow
@pytest.mark.parametrize("partly", ["lora", "static", "head"])
def test_workers_give_the_same_bits(partly, tmp_path):
    config = tiny_config("proxyfl", **PARTLY[partly])
    inline, workers = (states(config, tmp_path / str(count), count) for count in (0, 2))
    assert all(map(same_state, inline, workers))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in FIRST]
)
def test_every_kind_of_method_trains_a_wide_network_and_adapters_of_it(name, tmp_path):
    for partly in ({}, LORA):
        config, told = tiny_config(name, model__name="wrn-16-1", rounds=1, **partly), Told()
        state = play(config, make_simulation(), tmp_path / str(bool(partly)), observers=[told])
        assert told.reports[0].metrics["failed"] == {}
        assert any("trunk.stage3.1.norm2.running_mean" in part for part in state.weights) != bool(partly)
    assert all("lora_" in part or "classifier." in part or "heads." in part for part in state.weights)


def test_bytes_of_a_round_are_those_of_what_is_trained(tmp_path):
    """Digits at width 1: a classifier of 64 × 10 and 10 biases; rank 2 beside nine convolutions."""
    told = {}
    for name, partly in {"head": HEAD, "lora": LORA}.items():
        told[name] = Told()
        play(tiny_config("fedavg", rounds=1, **partly), make_simulation(), tmp_path, observers=[told[name]])
    traffic = {name: found.reports[0].metrics["traffic"] for name, found in told.items()}
    assert traffic["head"]["numbers_up"] == 2 * 650
    assert traffic["head"]["bytes_up"] == traffic["head"]["bytes_down"] == 2 * 4 * 650
    sizes = [
        (1 * 9, 16),
        (144, 16),
        (144, 16),
        (144, 32),
        (288, 32),
        (16, 32),
        (288, 64),
        (576, 64),
        (32, 64),
    ]
    adapters = sum(2 * (inputs + outputs) for inputs, outputs in sizes)
    assert adapters == 3_954
    assert traffic["lora"]["numbers_up"] == 2 * (adapters + 650)
    assert traffic["lora"]["up"] == {
        "trunk": 2 * 4 * adapters, "classifier": 2 * 4 * 650, "heads": 0, "extras": 0,
    }  # fmt: skip


def test_private_heads_stay_private_beside_frozen_layers(tmp_path):
    config = tiny_config("proxyfl", **HEAD, method__icpl__keep_heads=True)
    state = play(config, make_simulation(), tmp_path)
    assert sorted(state.weights) == ["classifier.bias", "classifier.weight"]
    assert list(tmp_path.rglob("round-*.safetensors"))


def test_saved_models_are_whole_and_plain(tmp_path):
    short = {"rounds": 2, "clients": 4, "per_round": 2, "width": 1, "subset": 120, "train__epochs": 1}
    run = Experiment("fedavg", "digits", **short, dtype="fp32", **LORA).run(tmp_path / "run", workers=0)
    trained = run.model("last")
    assert not any("lora" in name for name in trained.network.state_dict())
    test = run.dataset().test
    right = (trained(test.images).argmax(1) == test.labels).float().mean()
    assert float(right) == pytest.approx(run.metrics[-1]["accuracy"], abs=1e-6)
    state = load((run.path / "checkpoints" / "round-00000002" / "state.safetensors").read_bytes())
    names = [name for name in state if name.startswith("weights/")]
    assert len(names) == 2 * 9 + 2
    again = Experiment("fedavg", "digits", **short, weights=str(run.path)).run(tmp_path / "on", workers=0)
    assert again.environment["start_accuracy"] == pytest.approx(run.metrics[-1]["accuracy"], abs=0.01)


def test_a_run_goes_on_beside_the_frozen_tensors_it_began_with_or_not_at_all(tmp_path, monkeypatch):
    simulation, config = make_simulation(), tiny_config("fedavg", **HEAD)
    first = build.assemble(config, simulation, workers=0).record(tmp_path / "run")
    next(first.rounds(1))
    again = build.assemble(config, simulation, workers=0).resume(tmp_path / "run").run()
    assert again.state.round == 2
    other = build.assemble(config, simulation, workers=0).resume(tmp_path / "run")
    other.state = first.state
    monkeypatch.setattr(other.trainer, "seed", 7)  # as another version of torch would draw
    with pytest.raises(RunError, match="other initial weights"):
        repair.require_same_frozen(other.recording.run, other.recording.saved, other.trainer.checksums)


def test_a_start_is_frozen_as_it_came(tmp_path):
    simulation = make_simulation()
    config = tiny_config("fedavg", **HEAD)
    start = build.assemble(tiny_config("fedavg", seed=9), simulation, workers=0).trainer.plain
    federation = build.assemble(config, simulation, start=start, workers=0)
    federation.run()
    whole = federation.trainer.whole(federation.state.weights)
    frozen = {name: value for name, value in whole.items() if not name.startswith("classifier.")}
    assert same_bits(frozen, {name: start[name] for name in frozen})
    assert not torch.equal(whole["classifier.weight"], start["classifier.weight"])
    model = federation.model()
    assert torch.equal(model.get_parameter("classifier.weight"), whole["classifier.weight"])


def test_add_ons_that_read_the_classifier_need_it_trained(tmp_path):
    config = tiny_config("proxyfl", model__trainable="trunk.*")
    with pytest.raises(Exception, match="classifier"):
        play(config, make_simulation(), tmp_path)
    with pytest.raises(ConfigError, match="names no parameter of 'resnet8'"):
        play(tiny_config("fedavg", model__trainable="nothing"), make_simulation(), tmp_path)
