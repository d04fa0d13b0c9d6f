"""The profile of a client's round: what it measures, and that training does not notice."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from proxyfl.core import spans
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.spans import (
    AVERAGE,
    BACKWARD,
    BEGIN,
    EVALUATE,
    FINISH,
    FOLD,
    FORWARD,
    OBSERVE,
    ROUND,
    STRONG,
    TEACHER,
    WEAK,
)
from proxyfl.core.state import Task
from proxyfl.data import stream as streams
from proxyfl.encoders import Encoder, named
from proxyfl.engines.forkserver import WORKERS
from proxyfl.federation.client import every_step, numerics
from proxyfl.methods.proxyfl import ProxyFL
from proxyfl.profiling import profile as profiling
from proxyfl.profiling.hardware import clock, matrix_peak
from proxyfl.profiling.instrumentation import Recording, SomeSteps
from proxyfl.profiling.phases import OPTIMISER, REST, Phase, Profile
from proxyfl.profiling.process import profile_in_process
from proxyfl.profiling.profile import profile
from proxyfl.report.phases import caption
from toybox import assemble, every_method, make_simulation, same_bits, tiny_config

SIMULATION = make_simulation((4, 6, 5, 4), (12, 12, 12, 12))
OTHER_KINDS = ("proxyfl", "fedavg", "fedmatch", "feddure", "fedloke")
KINDS = ("proxyfl", "fedmatch")
"""A single loss with add-ons, and those with steps of their own."""

PER_IMAGE = (
    18_432 + 589_824 + (147_456 + 294_912 + 16_384) + (147_456 + 294_912 + 16_384) + 1_280
)  # 2 k² Cin Cout H W of stem and three stages of ResNet-8 at width 1 on 8×8 grey, and of its classifier


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(profiling, "SECONDS", 0.02)
    monkeypatch.setattr(profiling, "matrix_peak", lambda dtype, device: 100.0)


def client(folder, name="proxyfl", **settings):
    """A trainer, a task of round 1 and the client's data."""
    config = tiny_config(name, **settings)
    federation, trainer = assemble(folder, config, SIMULATION, workers=0)
    state = federation.start(trainer.initial_weights())
    data = SIMULATION.holdings.client(1, oracle=trainer.method.oracle)
    return trainer, Task(1, 1, state.weights, dict(state.extras)), data


def trained(trainer, task, data, steps=every_step):
    with numerics(trainer.compute):
        return trainer.train(task, data, steps=steps)


def recorded(trainer, task, data, steps):
    with Recording(clock(trainer.device)) as recording:
        update = trained(trainer, task, data, steps)
    return update, recording.spent()


def test_phases_add_up_to_wall_time(tmp_path):
    steps = SomeSteps()
    update, spent = recorded(*client(tmp_path, "fixmatch-gpl"), steps)
    in_steps = sum(seconds for name, seconds in spent.items() if name not in (ROUND, BEGIN, FINISH))
    assert update.metrics["steps"] == len(steps.seconds) == steps.whole_round == 2
    assert sum(spent.values()) == pytest.approx(update.seconds, rel=0.05, abs=0.05)
    # The teacher is built in the first step, but belongs to the beginning of the round.
    assert in_steps < sum(steps.seconds) < in_steps + spent[BEGIN] + 0.05


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each.values[0], marks=[] if each.values[0] in KINDS else pytest.mark.slow)
        for each in every_method()
    ],
)
def test_every_method_trains_to_the_same_bits_under_the_profiler(name, tmp_path):
    trainer, task, data = client(tmp_path, name)
    plain = trained(trainer, task, data)
    watched, spent = recorded(trainer, task, data, SomeSteps())
    assert same_bits(plain.weights, watched.weights)
    assert same_bits(plain.extras, watched.extras)
    assert plain.metrics == watched.metrics
    assert spans._watch is None
    assert set(spent) >= {WEAK, FORWARD, BACKWARD, OPTIMISER, REST, BEGIN, FINISH, ROUND}
    adding = [addon.name for addon in trainer.method.addons if addon.name in ("icpl", "prox", "proto")]
    assert set(spent) >= {f"loss: {name}" for name in adding}


@pytest.mark.parametrize(
    "name",
    ["feddb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedlabel", *OTHER_KINDS))],
)
def test_a_profile_of_every_kind_of_method(name):
    found = profile(tiny_config(name), simulation=SIMULATION, steps=1)
    network = found.network_phase
    assert found.method == name
    assert found.step_ms == pytest.approx(sum(found.share(phase) * found.step_ms for phase in found.step))
    assert found.step[-1].name == REST
    convs = [(found.conv_forward, found.conv_backward)]
    while sum(convs[-1]) >= 1 and len(convs) < 4:  # timed apart from the step: a busy machine may interfere
        again = profile(tiny_config(name), simulation=SIMULATION, steps=1)
        convs.append((again.conv_forward, again.conv_backward))
    assert min(convs[-1]) > 0
    assert sum(convs[-1]) < 1
    assert network.gflop > 0
    assert network.ms < found.step_ms
    assert found.peak == 100
    assert found.memory > 1e7
    assert [phase.name for phase in found.client] == [BEGIN, FINISH, ROUND]
    assert {phase.name for phase in found.server} >= {FOLD, AVERAGE, EVALUATE}
    names = [phase.name for phase in found.step]
    if name == "fedlabel":  # losses that are made together are named together
        assert "loss: unlabelled + consistency" in names
    if name == "feddb":  # its walk through the pool comes before the steps
        assert TEACHER not in names
        assert found.client[0].ms > 1
    assert Profile.from_tree(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_phases_of_proxyfl_and_the_operations_of_its_network():
    found = profile(tiny_config(), simulation=SIMULATION, client=1)
    names = [phase.name for phase in found.step]
    assert names[:4] == [WEAK, STRONG, TEACHER, FORWARD]
    assert [name for name in names if "loss" in name] == [
        "loss: supervised", "loss: unlabelled", "loss: icpl"
    ]  # fmt: skip
    assert names[-2:] == [OPTIMISER, REST] or names[-2:] == [OBSERVE, REST]
    assert {"server: gpt", "server: prior"} <= {phase.name for phase in found.server}
    gflop = {phase.name: 1e9 * phase.gflop for phase in found.step}
    assert gflop[FORWARD] == pytest.approx((8 + 16 + 16) * PER_IMAGE)
    assert gflop[TEACHER] == pytest.approx((8 + 16) * PER_IMAGE)
    assert 1.9 * gflop[FORWARD] < gflop[BACKWARD] < 2.1 * gflop[FORWARD]
    assert (found.client_id, found.images, found.steps_per_round, found.updates) == (1, 18, 2, 2)


@pytest.mark.parametrize(
    ("wanted", "taken"), [(1, [0, 0, 1]), (2, [0, 1, 1]), (5, [1, 2, 2]), (99, [2, 2, 2])]
)
def test_steps_are_spread_over_the_epochs_and_the_last_has_one(wanted, taken, tmp_path):
    trainer, task, data = client(tmp_path, "fedavg", train__epochs=3)
    seen = []
    trainer.method.observe = lambda outputs, ctx: seen.append(ctx.epoch)
    steps = SomeSteps(wanted)
    trained(trainer, task, data, steps)
    assert [seen.count(epoch) for epoch in range(3)] == taken
    assert (len(steps.seconds), steps.whole_round) == (sum(taken), 6)


@pytest.mark.parametrize("hook", ["losses", "serve"])
def test_a_profile_ends_with_what_the_method_raises(hook, monkeypatch):
    monkeypatch.setattr(ProxyFL, hook, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profile(tiny_config(), simulation=SIMULATION, steps=1)
    assert spans._watch is None


def test_hooks_that_are_left_empty_are_no_phases():
    found = profile(tiny_config(), simulation=SIMULATION, steps=1)
    assert "server: proxyfl" not in {phase.name for phase in found.server}
    assert "loss: gpt" not in {phase.name for phase in found.step}


def test_as_many_steps_as_take_ten_seconds_but_not_too_many(monkeypatch):
    monkeypatch.setattr(profiling, "SECONDS", 10.0)
    assert [profiling._affordable(seconds) for seconds in (30.0, 1.0, 0.25, 0.001)] == [1, 5, 20, 50]


def test_the_largest_client_of_the_first_round_is_taken():
    simulation = make_simulation((4, 9, 5, 4), (12, 12, 12, 12))
    found = profile(tiny_config("fedavg", per_round=4), simulation=simulation, steps=1)
    assert (found.client_id, found.images, found.updates) == (1, 21, 4)


def test_clients_that_cannot_be_profiled():
    simulation = make_simulation((4, 0, 5, 0), (12, 12, 12, 0))
    with pytest.raises(ConfigError, match=r"client 4 .*0 to 3"):
        profile(tiny_config(), simulation=simulation, client=4)
    with pytest.raises(ConfigError, match=r"client 1 .*fedavg"):
        profile(tiny_config("fedavg"), simulation=simulation, client=1)
    with pytest.raises(ConfigError, match="client 3 holds no images"):
        profile(tiny_config(), simulation=simulation, client=3)
    nobody = make_simulation((0, 0, 0, 0), (12, 12, 12, 12))
    with pytest.raises(RunError, match=r"no client of round 1 .*fedavg"):
        profile(tiny_config("fedavg"), simulation=nobody)


def test_progress_is_told_and_evaluation_projected_from_a_sample():
    told, config = [], tiny_config("fedavg", compute__eval_batch=5)
    found = profile(config, simulation=SIMULATION, steps=2, tell=lambda *line: told.append(line))
    assert found.test_images == (10, 40)
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert "step 2 of 2" in dict(told)


def test_a_matrix_product_has_a_speed():
    assert matrix_peak("fp32", torch.device("cpu"), 0.05) > 0.1
    assert Phase("forward", 2.0, 3.0).gflops == 1500
    assert Phase("nothing", 0.0).gflops == 0


@pytest.mark.slow
def test_a_process_of_its_own_answers_or_says_why(monkeypatch):
    monkeypatch.delenv(WORKERS)
    told = []
    config = tiny_config("fedavg", subset=60)
    with pytest.raises(ConfigError, match=r"client 4 .*0 to 3"):
        profile_in_process(config, None, steps=1, client=4, tell=lambda *line: told.append(line))
    assert told == [("data", 0.0)]


@pytest.mark.slow
def test_a_profile_from_a_process_of_its_own(monkeypatch):
    monkeypatch.delenv(WORKERS)
    config = tiny_config("fedavg", subset=60)
    found = profile_in_process(config, None, steps=1, client=None, tell=lambda *_: None)
    assert (found.method, found.data, found.steps) == ("fedavg", "digits", 1)
    assert isinstance(found.step[0], Phase)


def test_a_frozen_encoder_is_measured_before_the_first_round(tmp_path, monkeypatch):
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path))
    encoder = Encoder(torch.nn.Flatten(), name="toy:here")
    monkeypatch.setitem(named.KINDS, "toy", lambda place: encoder)
    settings = {"subset": 150, "per_round": 2, "clients": 4, "labels__per_class": 2}
    config = tiny_config("fixmatch-gpl", model__name="frozen:toy:here", **settings)
    found = profile(config, steps=1)
    made = found.encoding
    assert (made.samples, made.views, made.called, found.called) == (150, 5, "images", "images")
    assert "texts, mean of 1 of" in caption(dataclasses.replace(found, called="texts"))
    assert [phase.name for phase in made.phases] == ["weak views", "strong views", "encoder"]
    assert all(phase.ms > 0 for phase in made.phases)
    assert made.per_second == pytest.approx(5000 / made.ms)
    assert Profile.from_tree(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_only_views_of_steps_that_are_taken_count(tmp_path, monkeypatch):
    """Although views are computed for several steps at once."""
    drawn, view = [], streams.Stream._view

    def counted(self, kind, index):
        drawn.append(len(index))
        return view(self, kind, index)

    monkeypatch.setattr(streams.Stream, "_view", counted)
    trainer, task, data = client(tmp_path, "fedavg", train__batch=2)
    steps = SomeSteps(3)
    trained(trainer, task, data, steps)
    assert (len(steps.seconds), sum(drawn)) == (3, 3 * 2)
    assert steps.whole_round > 3
