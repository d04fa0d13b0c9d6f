"""Static batch norm: no statistics in training, sums from clients after the mean, nothing else of them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from proxyfl.core.errors import ConfigError, UpdateRefused
from proxyfl.core.state import STATISTICS, Task, Update
from proxyfl.federation.statistics import _usable, statistics, sums
from proxyfl.models import Network
from toybox import Told, assemble, make_simulation, play, tiny_config

STATIC = {"model__norm": "static"}


def test_mean_and_variance_of_sums():
    """Images with position means 1, 3 and 5 and mean squares 2, 10 and 30."""
    mean, variance = statistics(torch.tensor([9.0]).double(), torch.tensor([42.0]).double(), 3)
    assert (mean.tolist(), variance.tolist()) == ([3.0], [5.0])
    assert mean.dtype == variance.dtype == torch.float32


def test_sums_are_over_images_whatever_their_batches():
    net = Network.of(nn.Sequential(nn.BatchNorm2d(1)), 1, 1, norm="static")()
    images = torch.tensor([[0.0, 2.0], [3.0, 3.0], [4.0, 6.0]]).reshape(3, 1, 1, 2)
    for parts in (1, 2, 3):
        found = sums(net, images.tensor_split(parts))
        assert found == {"0/mean": torch.tensor([9.0]), "0/square": torch.tensor([37.0])}
    assert not net[0].training or net[0].running_mean.item() == 0


def test_training_uses_the_batch_and_leaves_statistics_alone():
    net, usual = (Network.of("resnet8", 3, 1, 1, norm=norm)() for norm in ("static", "batch"))
    usual.load_state_dict(net.state_dict())
    x = torch.rand(8, 1, 8, 8)
    assert torch.equal(net.train()(x), usual.train()(x))
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all(not norm.running_mean.any() and bool((norm.running_var == 1).all()) for norm in norms)
    net.load_state_dict(usual.state_dict())
    assert torch.equal(net.eval()(x), usual.eval()(x))


def test_the_servers_statistics_are_those_of_the_new_model_on_the_rounds_images(tmp_path):
    config, simulation, told = tiny_config("fedavg", rounds=1, **STATIC), make_simulation(), Told()
    state = play(config, simulation, tmp_path, observers=[told])
    report = told.reports[0]
    assert report.metrics["statistics"] == {"images": 64, "failed": {}}
    _, trainer = assemble(tmp_path, config, simulation, workers=0)
    network = trainer.new_network()
    network.load_state_dict(state.weights)
    seen = []
    network.trunk.stem.norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for client in report.clients:
        data = simulation.holdings.client(client)
        index = torch.cat([data.labelled, data.unlabelled])
        trained = torch.as_tensor(data.images[index]).float() / 255
        views = simulation.train_views
        network.eval()((trained - views.mean[0]) / views.std[0])
    seen = torch.cat(seen)
    torch.testing.assert_close(state.weights["trunk.stem.norm.running_mean"], seen.mean((0, 2, 3)))
    expected = seen.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(state.weights["trunk.stem.norm.running_var"], expected, rtol=1e-4, atol=1e-5)


def test_what_is_sent_for_it_is_counted(tmp_path):
    told = {}
    for norm in ("batch", "static"):
        told[norm] = Told()
        config = tiny_config("fedavg", rounds=1, model__norm=norm)
        play(config, make_simulation(), tmp_path, observers=[told[norm]])
    batch, static = (told[norm].reports[0].metrics["traffic"] for norm in ("batch", "static"))
    channels = 3 * (16 + 32 + 64)
    assert static["numbers_up"] - batch["numbers_up"] == 2 * 2 * channels
    assert static["bytes_up"] - batch["bytes_up"] == 2 * 2 * channels * 8
    assert all(static[way] == 2 * batch[way] for way in ("bytes_down", "bytes_down_once"))


def test_a_method_with_other_names_for_its_weights(tmp_path):
    state = play(tiny_config("fedmatch", rounds=1, **STATIC), make_simulation(), tmp_path)
    assert state.weights["sigma.trunk.stem.norm.running_mean"].any()
    assert not any(name.startswith("trunk") for name in state.weights)


@pytest.fixture
def answer() -> Update:
    extras = {"a/mean": torch.tensor([2.0]).double(), "a/square": torch.tensor([4.0]).double()}
    return Update(1, 0, 2, {}, extras)


def bad(answer: Update, **extras: torch.Tensor) -> Update:
    changed = {name.replace("_", "/"): value for name, value in extras.items()}
    return dataclasses.replace(answer, extras={**answer.extras, **changed})


def test_sums_that_cannot_be(answer):
    shapes = {"a/mean": torch.Size([1]), "a/square": torch.Size([1])}
    assert _usable(answer, 0, shapes, 2) is answer
    one = torch.ones(1, dtype=torch.float64)
    for wrong, reason in (
        (dataclasses.replace(answer, samples=3), "claims 3 images, registered 2"),
        (dataclasses.replace(answer, client=1), "registered"),
        (dataclasses.replace(answer, weights={"w": one}), "not those that were requested"),
        (bad(answer, b_mean=one), "not those that were requested"),
        (bad(answer, a_mean=one.float()), "not of the form"),
        (bad(answer, a_mean=one.repeat(2)), "not of the form"),
        (bad(answer, a_mean=one * float("nan")), "beyond"),
        (bad(answer, a_square=one), "below zero"),
    ):
        with pytest.raises(UpdateRefused, match=reason):
            _usable(wrong, 0, shapes, 2)


def test_who_fails_is_left_out_and_without_any_the_old_ones_stay(tmp_path):
    config, simulation = tiny_config("fedavg", rounds=1, **STATIC), make_simulation()

    class Half:
        """Clients whose number is in ``silent`` send nonsense for statistics."""

        def __init__(self, engine, silent):
            self.engine, self.silent = engine, silent

        def run(self, tasks):
            kinds = []

            def noted(task: Task) -> Task:
                kinds.append(task.purpose == STATISTICS and task.client in self.silent)
                return task

            for update in self.engine.run(map(noted, tasks)):
                yield dataclasses.replace(update, extras={}) if kinds.pop(0) else update

    told = Told()
    state = play(config, simulation, tmp_path, observers=[told], engine=lambda e: Half(e, range(4)))
    assert not state.weights["trunk.stem.norm.running_mean"].any()
    assert told.reports[0].metrics["statistics"]["images"] == 0
    first = told.reports[0].clients[0]
    told = Told()
    play(config, simulation, tmp_path, observers=[told], engine=lambda e: Half(e, [first]))
    found = told.reports[0].metrics["statistics"]
    assert (found["images"], [*found["failed"]]) == (32, [str(first)])
    assert "its sums are not those" in found["failed"][str(first)]  # fmt: skip


@pytest.mark.parametrize("other", [{"aggregation__rule": "median"}, {"aggregation__clip": 1.0}])
def test_rules_that_do_not_cover_the_sums_are_refused(other):
    with pytest.raises(ConfigError, match="neither privacy nor"):
        tiny_config("fedavg", **STATIC, **other)
