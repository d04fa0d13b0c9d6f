"""The profile of a client's round: what it measures, and that training does not notice."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
from torch.optim import optimizer

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import Task
from proxyfl.data.stream import Stream
from proxyfl.federation.client import numerics
from proxyfl.federation.fold import Fold
from proxyfl.methods import recipes
from proxyfl.methods.context import ClientContext
from proxyfl.runs import apart, phases
from proxyfl.runs import profile as profiling
from proxyfl.runs.federation import WORKERS
from proxyfl.runs.phases import Clock, Steps, watched
from proxyfl.runs.profile import Phase, Profile, matrix_peak, profile
from toybox import assemble, make_simulation, same_bits, tiny_config

SIMULATION = make_simulation((4, 6, 5, 4), (12, 12, 12, 12))
NAMES = [recipe.name for recipe in recipes()]
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


def trained(trainer, task, data, steps=None):
    with numerics(trainer.config.compute):
        if steps is None:
            return trainer.train(task, data)
        with watched(trainer, steps):
            return trainer.train(task, data)


def traces(trainer):
    """Everything that is replaced during a profile."""
    places = [Stream, ClientContext, Fold, torch.autograd, torch.optim.Optimizer, type(trainer.network)]
    places += [trainer, trainer.method, *trainer.method.addons]
    hooks = len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks)
    return [dict(vars(place)) for place in places], hooks, torch.autograd._profiler_enabled()


def test_time_belongs_to_the_innermost_phase():
    clock = Clock(iter([0, 1, 3, 7, 15, 31]).__next__)
    with clock.phase("a"), clock.phase("b"):
        pass
    with clock.phase("c"):
        pass
    assert dict(clock.spent) == {"a": 1 + 4, "b": 2, "c": 16}


def test_a_whole_phase_keeps_what_happens_inside():
    clock = Clock(itertools.count().__next__)
    with clock.phase(phases.TEACHER), clock.phase(phases.FORWARD):
        pass
    assert dict(clock.spent) == {phases.TEACHER: 3}
    with clock.phase(phases.ROUND), clock.phase(phases.REST, always=True), clock.phase(phases.FORWARD):
        pass
    assert (clock.spent[phases.ROUND], clock.spent[phases.REST], clock.spent[phases.FORWARD]) == (2, 2, 1)


def test_phases_add_up_to_the_clients_time(tmp_path):
    ticks = itertools.count()  # a clock that goes on by one whenever it is read: what is lost would be seen
    steps = Steps(Clock(ticks.__next__))
    update = trained(*client(tmp_path, "fixmatch-lpl"), steps)
    spent, outside = steps.clock.spent, (phases.ROUND, phases.BEGIN, phases.FINISH, phases.IDLE)
    in_steps = sum(seconds for name, seconds in spent.items() if name not in outside)
    assert update.metrics["steps"] == len(steps.seconds) == steps.whole_round == 2
    assert sum(spent.values()) == next(ticks) - 1
    assert sum(steps.seconds) == in_steps + 2 * len(steps.seconds)  # one tick before and one after a step


def test_phases_add_up_to_wall_time(tmp_path):
    steps = Steps(Clock())
    update = trained(*client(tmp_path), steps)
    assert sum(steps.clock.spent.values()) == pytest.approx(update.seconds, rel=0.05, abs=0.05)
    # The teacher is built in the first step, but belongs to the beginning of the round.
    assert steps.clock.spent[phases.BEGIN] > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_method_trains_to_the_same_bits_under_the_clock(name, tmp_path):
    trainer, task, data = client(tmp_path, name)
    before = traces(trainer)
    plain = trained(trainer, task, data)
    steps = Steps(Clock())
    timed = trained(trainer, task, data, steps)
    assert same_bits(plain.weights, timed.weights)
    assert same_bits(plain.extras, timed.extras)
    assert plain.metrics == timed.metrics
    assert traces(trainer) == before
    told = {name for name, seconds in steps.clock.spent.items() if seconds > 0}
    assert told >= {phases.WEAK, phases.FORWARD, phases.BACKWARD, phases.OPTIMISER, phases.REST}
    adding = [addon.name for addon in trainer.method.addons if addon.name in ("icpl", "prox", "proto")]
    assert told >= {f"loss: {name}" for name in adding}


@pytest.mark.parametrize("name", ["proxyfl", "fedavg", "fedmatch", "feddure", "feddb", "fedloke", "fedlabel"])
def test_a_profile_of_every_kind_of_method(name):
    found = profile(tiny_config(name), simulation=SIMULATION, steps=1)
    network = found.network_phase
    assert found.method == name
    assert found.step_ms == pytest.approx(sum(found.share(phase) * found.step_ms for phase in found.step))
    assert found.step[-1].name == phases.REST
    assert found.conv_forward > 0
    assert found.conv_backward > 0
    assert found.conv_forward + found.conv_backward < 1
    assert network.gflop > 0
    assert network.ms < found.step_ms
    assert found.peak == 100
    assert found.memory > 1e7
    assert [phase.name for phase in found.client] == [phases.BEGIN, phases.FINISH, phases.ROUND]
    assert {phase.name for phase in found.server} >= {phases.FOLD, phases.AVERAGE, phases.EVALUATE}
    names = [phase.name for phase in found.step]
    if name == "fedlabel":  # losses that are made together are named together
        assert "loss: unlabelled + consistency" in names
    if name == "feddb":  # its walk through the pool comes before the steps
        assert phases.TEACHER not in names
        assert found.client[0].ms > 1
    assert Profile.from_tree(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_phases_of_proxyfl_and_the_operations_of_its_network():
    found = profile(tiny_config(), simulation=SIMULATION, client=1)
    names = [phase.name for phase in found.step]
    assert names[:4] == [phases.WEAK, phases.STRONG, phases.TEACHER, phases.FORWARD]
    assert [name for name in names if "loss" in name] == [
        "loss: supervised", "loss: unlabelled", "loss: icpl"
    ]  # fmt: skip
    assert names[-2:] == [phases.OPTIMISER, phases.REST] or names[-2:] == [phases.OBSERVE, phases.REST]
    assert {"server: gpt", "server: prior"} <= {phase.name for phase in found.server}
    gflop = {phase.name: 1e9 * phase.gflop for phase in found.step}
    assert gflop[phases.FORWARD] == pytest.approx((8 + 16 + 16) * PER_IMAGE)
    assert gflop[phases.TEACHER] == pytest.approx((8 + 16) * PER_IMAGE)
    assert 1.9 * gflop[phases.FORWARD] < gflop[phases.BACKWARD] < 2.1 * gflop[phases.FORWARD]
    assert (found.client_id, found.images, found.steps_per_round, found.updates) == (1, 18, 2, 2)


@pytest.mark.parametrize(
    ("wanted", "taken"), [(1, [0, 0, 1]), (2, [0, 1, 1]), (5, [1, 2, 2]), (99, [2, 2, 2])]
)
def test_steps_are_spread_over_the_epochs_and_the_last_has_one(wanted, taken, tmp_path):
    trainer, task, data = client(tmp_path, "fedavg", train__epochs=3)
    seen = []
    trainer.method.observe = lambda outputs, ctx: seen.append(ctx.epoch)
    steps = Steps(Clock(), wanted)
    trained(trainer, task, data, steps)
    assert [seen.count(epoch) for epoch in range(3)] == taken
    assert (len(steps.seconds), steps.whole_round) == (sum(taken), 6)


@pytest.mark.parametrize("where", ["losses", "upload"])
def test_everything_is_put_back_when_training_fails(where, tmp_path):
    trainer, task, data = client(tmp_path)
    setattr(trainer.method, where, lambda *_: 1 / 0)
    before = traces(trainer)
    recorder = torch.autograd.profiler.profile(use_kineto=False)
    with pytest.raises(ZeroDivisionError):
        trained(trainer, task, data, Steps(Clock(), 5, recorder))
    assert traces(trainer) == before


def test_the_largest_client_of_the_first_round_is_taken():
    simulation = make_simulation((4, 9, 5, 4), (12, 12, 12, 12))
    found = profile(tiny_config("fedavg", per_round=4), simulation=simulation, steps=1)
    assert (found.client_id, found.images, found.updates) == (1, 21, 4)


def test_clients_that_cannot_be_profiled():
    simulation = make_simulation((4, 0, 5, 0), (12, 12, 12, 0))
    with pytest.raises(ConfigError, match="client 4 does not exist; there are 0 to 3"):
        profile(tiny_config(), simulation=simulation, client=4)
    with pytest.raises(ConfigError, match="client 1 holds no images that fedavg can train on"):
        profile(tiny_config("fedavg"), simulation=simulation, client=1)
    with pytest.raises(ConfigError, match="client 3 holds no images"):
        profile(tiny_config(), simulation=simulation, client=3)
    nobody = make_simulation((0, 0, 0, 0), (12, 12, 12, 12))
    with pytest.raises(RunError, match="no client of round 1 holds images that fedavg"):
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
    assert matrix_peak("bf16", torch.device("cpu"), 0.05) > 0.1
    assert Phase("forward", 2.0, 3.0).gflops == 1500
    assert Phase("nothing", 0.0).gflops == 0


def test_a_process_of_its_own_answers_or_says_why(monkeypatch):
    monkeypatch.delenv(WORKERS)
    told = []
    config = tiny_config("fedavg", subset=60)
    with pytest.raises(ConfigError, match="client 4 does not exist; there are 0 to 3"):
        apart.profile_apart(config, None, steps=1, client=4, tell=lambda *line: told.append(line))
    assert told == [("data", 0.0)]


@pytest.mark.slow
def test_a_profile_from_a_process_of_its_own(monkeypatch):
    monkeypatch.delenv(WORKERS)
    config = tiny_config("fedavg", subset=60)
    found = apart.profile_apart(config, None, steps=1, client=None, tell=lambda *_: None)
    assert (found.method, found.data, found.steps) == ("fedavg", "digits", 1)
    assert isinstance(found.step[0], Phase)
