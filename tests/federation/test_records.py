"""Differential privacy of single images: gradients, draws, the account, each against an obvious version."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from proxyfl.aggregation.accountant import epsilon
from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.state import Task, size_in_bytes
from proxyfl.deploy.widening import widened
from proxyfl.engines.setup import trainer_of
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.records import (
    RecordPrivacy,
    RecordRound,
    _require_sum,
    require_network,
    unsupported,
)
from proxyfl.federation.sampling import Population
from proxyfl.methods import registry
from proxyfl.models import Network
from proxyfl.runs.settings import resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import prepare
from toybox import TINY

CLIP = 0.05
PRIVATE = {
    "privacy__record_clip": CLIP,
    "privacy__record_noise": 1.5,
    "model__norm": "group",
    "train__pool": "unlabelled",
    "dtype": "fp32",
}
SMALL = {**TINY, "subset": 60, "labels__per_class": 3, "clients": 2, "per_round": 2, "rounds": 2}


def config_of(method="fedavg", **settings):
    short = {**SMALL, **PRIVATE, **settings}
    return resolve("digits", from_short(short), {"method": {"name": method}})


def trainer(config, folder):
    simulation = prepare(config)
    network = Network.configured(config.model, 10, 1, 8)
    method = registry.method_of(config)
    return trainer_of(config, method, network, simulation.train_views, ClientStore(folder)), simulation


@pytest.mark.parametrize(
    ("method", "network"),
    [("fedavg", "resnet8"), ("gpl-all", "resnet8"), ("lpl-all", "wrn-16-1"), ("fedavg", "wrn-16-1")],
)
def test_a_step_clips_every_images_own_gradient(tmp_path, method, network):
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")
    config = config_of(method, model__name=network, train__momentum=0.0, train__weight_decay=0.0)
    one, simulation = trainer(config, tmp_path)
    task = Task(1, 0, one.initial_weights())
    exact = RecordPrivacy(CLIP, 0.0, 1e-5, "seed")
    drawn = exact.begin(1, task)
    one.load(task.weights)
    ctx = one._context(task, simulation.holdings.client(0), {}, 0, drawn)
    one.network.train().requires_grad_(True)
    batch = next(ctx.stream.epoch())
    assert len(batch.x) > 1
    before = copy.deepcopy(one.network)
    with drawn.watching(ctx):
        drawn.step(batch, ctx)
    rows = [(image, label, 1.0) for image, label in zip(batch.x, batch.y, strict=True)]
    labelled = min(config.train.batch, len(ctx.stream.data.labelled))
    if method != "fedavg":
        pseudo = F.softmax(before(batch.u_weak), 1).argmax(1)
        unlabelled = min(config.train.batch * config.train.mu, len(ctx.stream.pool))
        rows += [(u, y, labelled / unlabelled) for u, y in zip(batch.u_strong, pseudo, strict=True)]
    total = [torch.zeros_like(p) for p in before.parameters()]
    clipped = 0
    for image, label, weight in rows:
        loss = weight * F.cross_entropy(before(image[None]), label[None])
        own = torch.autograd.grad(loss, list(before.parameters()), allow_unused=True)
        own = [torch.zeros_like(p) if g is None else g for g, p in zip(own, before.parameters(), strict=True)]
        norm = float(torch.cat([g.flatten() for g in own]).norm())
        clipped += norm > CLIP
        total = [t + g * min(1.0, CLIP / norm) for t, g in zip(total, own, strict=True)]
    assert clipped, "the clip must bite in this test"
    lr = ctx.optimiser.param_groups[0]["lr"]
    for old, new, change in zip(before.parameters(), one.network.parameters(), total, strict=True):
        assert torch.allclose(new, old - lr * change / labelled, atol=1e-6)
    assert not [hook for part in one.network.modules() for hook in part._forward_hooks]


def test_an_empty_step_is_noise_of_the_right_size(tmp_path):
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")
    config = config_of(train__momentum=0.0, train__weight_decay=0.0)
    one, simulation = trainer(config, tmp_path)
    task = Task(1, 0, one.initial_weights())
    ctx = one._context(task, simulation.holdings.client(0), {}, 0)
    nobody = dataclasses.replace(next(ctx.stream.epoch()), x=ctx.stream.no_view, y=torch.arange(0))
    before = [p.detach().clone() for p in one.network.parameters()]
    RecordPrivacy(CLIP, 1.5, 1e-5, "system").begin(1, task).step(nobody, ctx)
    moved = [(new - old).flatten() for new, old in zip(one.network.parameters(), before, strict=True)]
    lr, labelled = ctx.optimiser.param_groups[0]["lr"], min(config.train.batch, len(ctx.stream.data.labelled))
    deviation = float(torch.cat(moved).detach().std()) * labelled / lr
    assert deviation == pytest.approx(1.5 * CLIP, rel=0.1)


def test_every_image_has_a_coin_of_its_own():
    drawn = RecordRound(RecordPrivacy(1.0, 1.0, 1e-5, "seed"), torch.Generator().manual_seed(5))
    batches = [drawn.sample(40, 10) for _ in range(2000)]
    counts = torch.cat(batches).bincount(minlength=40)
    assert counts.float().mean() == pytest.approx(500, rel=0.03)
    assert 400 < counts.min() <= counts.max() < 600
    sizes = torch.tensor([len(batch) for batch in batches]).float()
    assert sizes.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.15)
    assert drawn.sample(6, 10).tolist() == [0, 1, 2, 3, 4, 5]
    assert len(drawn.sample(0, 10)) == 0


def test_what_a_client_sends_holds_no_sums_about_its_images(tmp_path):
    pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")
    one, simulation = trainer(config_of("fixmatch-gpl"), tmp_path)
    task = Task(1, 0, one.initial_weights())
    update, again = (one.train(task, simulation.holdings.client(0)) for _ in range(2))
    assert set(update.metrics) == {"steps"}
    assert not update.extras
    assert all(torch.equal(update.weights[name], again.weights[name]) for name in update.weights)
    system, _ = trainer(config_of("fixmatch-gpl", privacy__draw="system"), tmp_path)
    other = system.train(task, simulation.holdings.client(0))
    assert any(not torch.equal(update.weights[name], other.weights[name]) for name in update.weights)


def test_the_memory_estimate_has_a_gradient_for_every_image(tmp_path, monkeypatch):
    limits = pytest.importorskip("proxyfl.engines.flower.limits", reason="Flower is not installed")
    monkeypatch.setattr(limits, "_resident", lambda: 0)
    one, _ = trainer(config_of("fedavg"), tmp_path)
    plain, _ = trainer(config_of("fedavg"), tmp_path)
    plain.records = None
    weights = size_in_bytes(one.new_network().state_dict())
    grown = limits.estimate(one) - limits.estimate(plain)
    assert grown == limits.SLACK * one.settings.batch * weights


def test_the_account_is_of_the_most_exposed_image():
    train = TrainSettings(batch=10, mu=2, epochs=3, pool="unlabelled", epoch="release")
    people = Population(np.array([40, 100, 0]), np.array([200, 50, 0]))
    settings = RecordPrivacy(1.0, 1.5, 1e-5, "seed")
    fixmatch = registry.method_of(config_of("fixmatch-lpl"))
    found = settings.spent(7, train, fixmatch, people)
    # the first: q = 10 / 40 of labelled images, 20 steps an epoch; the second: q = 20 / 50, 5 steps
    each = [epsilon(0.25, 1.5, 7 * 3 * 20, 1e-5)[0], epsilon(0.4, 1.5, 7 * 3 * 5, 1e-5)[0]]
    assert found["epsilon"] == max(each)
    many = Population(np.arange(20, 60), np.arange(200, 240))
    bound = settings.spent(7, train, fixmatch, many)["epsilon"]
    pairs = [(many.labelled[k : k + 1], many.unlabelled[k : k + 1]) for k in (0, 20, 39)]
    single = [settings.spent(7, train, fixmatch, Population(*pair)) for pair in pairs]
    assert bound >= max(one["epsilon"] for one in single)


def test_the_account_agrees_with_that_of_opacus():
    accountants = pytest.importorskip("opacus.accountants", reason="Opacus is not installed")
    theirs = accountants.RDPAccountant()
    theirs.history = [(1.1, 256 / 60000, 14_000)]
    ours, _ = epsilon(256 / 60000, 1.1, 14_000, 1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=0.02)


@pytest.mark.parametrize(
    ("method", "settings", "why"),
    [
        ("proxyfl", {}, "no losses of single samples"),
        ("flexmatch", {}, "flexmatch"),
        ("fedprox", {}, "prox"),
        ("sage", {}, "sage"),
        ("fedavg", {"privacy__clip": 1.0, "federation__weighting": "uniform"}, "one of them"),
        ("fedavg", {"model__norm": "batch"}, "group"),
        ("fedavg", {"dtype": "bf16"}, "fp32"),
        ("fedavg", {"privacy__record_noise": 0.0}, "record_noise"),
        ("fixmatch-lpl", {"train__pool": "all"}, "unlabelled"),
        ("fixmatch-lpl", {"method__over": "selected"}, "batch"),
    ],
)
def test_what_the_account_would_not_hold_for_is_refused(method, settings, why):
    with pytest.raises(ConfigError, match=why):
        config_of(method, **settings)


def test_methods_that_change_a_step_do_not_inherit_losses_of_single_images():
    fixmatch = type(registry.method_of(config_of("fixmatch-lpl")))

    class Bold(fixmatch):
        def unlabelled_loss(self, strong, pseudo):
            return 2 * super().unlabelled_loss(strong, pseudo)

    class Quick(fixmatch):
        def steps_per_epoch(self, labelled, pool_steps, batch):
            return 1

    assert "unlabelled_loss" in unsupported(Bold())
    assert not unsupported(Quick())


def test_gradients_of_single_images_that_do_not_add_up_end_the_round():
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.ones(3)
    _require_sum(parameter, torch.full((4, 3), 0.25))
    for wrong in (torch.full((4, 3), 0.3), None):
        with pytest.raises(MethodError, match="do not add up"):
            _require_sum(parameter, wrong)


def test_a_layer_that_mixes_images_is_refused():
    with pytest.raises(ConfigError, match="'1' normalises over a batch"):
        require_network(torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)))


def test_a_site_approves_less_noise_and_longer_gradients_anew():
    def changed(**settings):
        return widened(
            config_of(privacy__draw="system"), config_of(**{"privacy__draw": "system", **settings})
        )

    assert not changed(privacy__record_clip=CLIP / 2, privacy__record_noise=2.0)
    for settings in (
        {"privacy__record_clip": 0.0},
        {"privacy__record_clip": 2 * CLIP},
        {"privacy__record_noise": 1.0},
        {"privacy__draw": "seed"},
    ):
        assert changed(**settings), settings
