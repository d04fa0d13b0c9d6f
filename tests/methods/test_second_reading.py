"""(FL)², CBAFed, RSCFed and the server of FedMatch, from the facts of their papers and releases alone: NumPy
in float64 with gradients by hand, compared through the hooks that a federation calls, whatever is inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from byhand import PLAIN, Weights, close, drawn, gradients, of_cross_entropy, take, unlabelled
from proxyfl.core.state import Tensors, Update, namespace
from proxyfl.data.stream import Batch
from proxyfl.methods import rscfed
from proxyfl.methods.base import Method
from proxyfl.methods.cbafed import CBAFed
from proxyfl.methods.context import ClientContext, ServerContext
from proxyfl.methods.fedmatch import FedMatch
from proxyfl.methods.flfl import FLFL
from proxyfl.methods.rscfed import RSCFed
from toyclient import CLASSES, CPU, Pool, Toy, arrays, context, logits_of, softmax


def server(round: int, weights: Tensors, extras: Tensors, **given: object) -> ServerContext:
    return ServerContext(round, 1, CLASSES, CPU, weights, extras, **given)  # type: ignore[arg-type]


# (FL)²


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_step_of_flfl(clip: float) -> None:
    pool, rho, eta, tau, weight = Pool(drawn(24, 5)), 0.3, 0.01, 0.75, 0.7
    method = FLFL(rho=rho, eta=eta, tau=tau, weight=weight)
    ctx = context(method, pool=pool, extras={}, batch=6, mu=1, max_grad_norm=clip, **PLAIN)
    sent = softmax(logits_of(arrays(Toy(1).state_dict()), pool.weak))
    confidence, label = sent.max(1), sent.argmax(1)
    threshold, average = confidence.mean(), sent.mean(0)
    kept = [i for i in range(24) if confidence[i] >= threshold * average[label[i]] / average.max()]
    assert 0 < len(kept) < 24

    method.begin_all(ctx)
    assert sorted(pool.selected or []) == kept
    assert float(method.finish_all(ctx)["flfl/tau"]) == pytest.approx(threshold, abs=1e-6)

    chosen = kept[:3] + kept[-3:]
    strong = drawn(6, 9)
    sure = [bool(confidence[i] >= tau) for i in chosen]
    assert 0 < sum(sure) < 6
    w = arrays(ctx.model.state_dict())
    uphill = of_cross_entropy(w, strong, label[chosen], sure)
    scale = [np.abs(w[0]) + eta, np.abs(w[1]) + eta, np.ones_like(w[2])]
    length = math.sqrt(sum(((t * g) ** 2).sum() for t, g in zip(scale, uphill, strict=True)))
    above = [p + rho * t**2 * g / length for p, t, g in zip(w, scale, uphill, strict=True)]
    here, there = softmax(logits_of(w, strong)), softmax(logits_of(above, strong))
    agree = gradients(above, strong, (there - here) * np.array(sure)[:, None] / 6)
    learn = of_cross_entropy(w, strong, label[chosen], [True] * 6)
    total = [a + weight * b for a, b in zip(learn, agree, strict=True)]
    norm = math.sqrt(sum((g**2).sum() for g in total))
    factor = min(1.0, clip / norm) if clip else 1.0
    assert not clip or factor < 1

    method.step(unlabelled(chosen, strong=strong), ctx)
    close(arrays(ctx.model.state_dict()), [p - 0.1 * factor * g for p, g in zip(w, total, strict=True)])


def test_flfl_weighs_clients_by_what_their_models_do_not_know_yet() -> None:
    method = FLFL()
    updates = [
        Update(1, k, 100 * k, {}, {"flfl/tau": torch.tensor([tau])}) for k, tau in ((1, 0.25), (2, 0.75))
    ]
    first, second = (method.weight_of(update, rule=float(update.samples)) for update in updates)
    assert first / second == pytest.approx(3)


# CBAFed


def test_cbafed_labels_a_pool_and_learns_from_it() -> None:
    shares = torch.tensor([0.22, 0.1, 0.02, 0.06])  # sums to C / 10
    spread = math.sqrt(sum((p - 0.1) ** 2 for p in (0.22, 0.1, 0.02, 0.06)) / 3)
    pool = Pool(drawn(40, 6))
    method = CBAFed(base=0.55, tau=0.6, rare=0.03)
    thresholds = [min(0.6, p + 0.55 - spread) for p in (0.22, 0.1, 0.02, 0.06)]
    assert thresholds[0] == 0.6 > thresholds[1]
    sent = softmax(logits_of(arrays(Toy(1).state_dict()), pool.weak))
    labels: dict[int, int] = {}
    seconds = 0
    for i, row in enumerate(sent.tolist()):
        order = sorted(range(CLASSES), key=lambda c: -row[c])
        if row[order[0]] > thresholds[order[0]]:
            labels[i] = order[0]
        elif order[1] == 2:  # the one rare class
            labels[i], seconds = 2, seconds + 1
    assert seconds > 0
    assert 0 < len(labels) < 40

    ctx = context(method, round=4, pool=pool, extras={"cbafed/shares": shares}, batch=8, mu=1, **PLAIN)
    method.begin_all(ctx)
    assert sorted(pool.selected or []) == sorted(labels)
    counts = method.finish_all(ctx)["cbafed/counts"].tolist()
    assert counts == [sum(label == c for label in labels.values()) for c in range(CLASSES)]

    chosen, weak = list(labels)[:8], drawn(8, 10)
    w = arrays(ctx.model.state_dict())
    gradient = of_cross_entropy(w, weak, [labels[i] for i in chosen], [True] * 8)
    take(ctx, unlabelled(chosen, weak=weak))
    close(arrays(ctx.model.state_dict()), [p - 0.1 * g for p, g in zip(w, gradient, strict=True)])


def test_cbafed_mixes_old_weights_in_at_labelled_clients_every_five_epochs() -> None:
    labels = torch.tensor([0, 1, 2, 3, 1, 1])
    pool = Pool(drawn(6, 7), labels=labels, steps=2)
    method = CBAFed()
    ctx = context(
        method, epochs=11, pool=pool, extras={"cbafed/shares": torch.full((4,), 0.1)}, batch=3, **PLAIN
    )
    method.begin_all(ctx)
    w = arrays(ctx.model.state_dict())
    kept: Weights = []
    for ctx.epoch in range(11):
        for _ in range(2):
            gradient = of_cross_entropy(w, pool.weak, labels.tolist(), [True] * 6)
            w = [p - 0.1 * g for p, g in zip(w, gradient, strict=True)]
            none = torch.zeros(0, 1, 3, 3)
            take(ctx, Batch(pool.weak, labels, none, none, none, torch.zeros(0, dtype=torch.int64)))
        if ctx.epoch in (5, 10):
            w = [(4 * old + new) / 5 for old, new in zip(kept, w, strict=True)]
        if ctx.epoch in (0, 5, 10):
            kept = w
        close(arrays(ctx.model.state_dict()), w, 2e-5)
    assert method.finish_all(ctx)["cbafed/counts"].tolist() == [1, 3, 1, 1]


def test_the_server_of_cbafed_counts_every_client_and_averages_with_old_weights() -> None:
    method = CBAFed(warmup=2)
    extras: Tensors = {}
    theta = {"w": torch.tensor([0.0])}
    extras |= method.start_all(server(0, theta, extras))
    counts = {0: [6.0, 2.0, 0.0, 0.0], 1: [0.0, 4.0, 4.0, 0.0]}
    mean = old = 0.0
    for round in range(1, 14):
        client = round % 2
        mean = float(round**2)
        update = Update(round, client, 8, {}, {"cbafed/counts": torch.tensor(counts[client])})
        assert method.weight_of(update, rule=1.0) == 8.0
        ctx = server(
            round, {"w": torch.tensor([mean])}, extras, previous=theta, clients=[client], samples=[8]
        )
        extras = method.serve_all(ctx, [method.receive_all(update)])
        if round in (7, 12):  # five and ten rounds after the warm-up
            mean = (old + mean) / 2
        if round in (2, 7, 12):
            old = mean
        assert float(ctx.weights["w"]) == mean
        theta = ctx.weights
        expected = [0.0, 0.2, 0.2, 0.0] if round == 1 else [0.15, 0.15, 0.1, 0.0]
        assert extras["cbafed/shares"].tolist() == pytest.approx(expected)


# RSCFed


def test_an_unlabelled_client_of_rscfed_follows_its_own_teacher() -> None:
    pool, method = Pool(drawn(12, 8)), RSCFed(weight=0.5)
    train = {**PLAIN, "lr": 0.5}
    ctx = context(method, round=5, pool=pool, extras={}, batch=2, mu=2, **train)
    teacher = arrays(Toy(1).state_dict())
    steps = 0

    def play(ctx: ClientContext, count: int) -> None:
        nonlocal teacher, steps
        w = arrays(ctx.model.state_dict())
        for k in range(count):
            index, view = [k, 11 - k, 5, 6], drawn(4, 20 + steps)
            q = softmax(logits_of(teacher, pool.weak[index])) ** 2
            q /= q.sum(1, keepdims=True)
            p = softmax(logits_of(w, view))
            outer = 2 * 0.5 * (p - q) / 4
            inner = p * (outer - (p * outer).sum(1, keepdims=True))
            w = [a - 0.5 * g for a, g in zip(w, gradients(w, view, inner), strict=True)]
            stays = min(1 - 1 / (steps + 1), 0.999)
            teacher = [stays * t + (1 - stays) * a for t, a in zip(teacher, w, strict=True)]
            steps += 1
            take(ctx, unlabelled(index, weak=view))
            close(arrays(ctx.model.state_dict()), w, 5e-6)

    method.begin_all(ctx)
    play(ctx, 3)
    method.finish_all(ctx)
    later = context(method, round=9, pool=pool, extras={}, state=ctx.state, batch=2, mu=2, **train)
    method.begin_all(later)  # the same teacher, although other weights were received
    play(later, 2)


def mean_of(updates: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> list[np.ndarray]:
    total = sum(weights)
    return [
        sum(g * update[k].double().numpy() for g, update in zip(weights, updates, strict=True)) / total
        for k in range(len(updates[0]))
    ]


def slow_consensus(
    trained: Sequence[Sequence[Sequence[Tensor]]],
    images: Sequence[int],
    labelled: Sequence[bool],
    subsets: Sequence[Sequence[int]],
    scales: tuple[float, float],
    again: float,
) -> list[np.ndarray]:
    """The mean of the means of the subsets, tensor by tensor; clients trained for each subset anew."""
    means = []
    left = [list(updates) for updates in trained]
    for members in subsets:
        base = [images[i] * (6.0 if labelled[i] else 1.0) for i in members]
        updates = [left[i].pop(0) for i in members]
        centre = mean_of(updates, base)
        scale = scales[0] if any(labelled[i] for i in members) else scales[1]
        weights = []
        for i, b, update in zip(members, base, updates, strict=True):
            away = sum(np.linalg.norm(w.double().numpy() - c) for w, c in zip(update, centre, strict=True))
            weights.append(b * math.exp(-scale * away / images[i]) * (again if labelled[i] else 1.0))
        means.append(mean_of(updates, weights))
    return [np.mean([mean[k] for mean in means], axis=0) for k in range(len(means[0]))]


@pytest.mark.parametrize("twice", [False, True])
def test_the_consensus_of_rscfed(twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labelled = [40, 30, 50, 20, 60, 10], [False, True, False, False, False, True]
    subsets = [[0, 2, 4], [1, 2, 0], [5, 1, 0]]
    monkeypatch.setattr(rscfed, "draw_subsets", lambda *_, **__: subsets)
    method = RSCFed(subsets=3, subset_size=3, scale=7.0, scale_unlabelled=21.0, twice=twice, warmup=0)
    ctx, clients = server(1, {}, {}), [10 + i for i in range(6)]
    times = method.trainings(ctx, clients)
    assert list(times) == [3, 2, 2, 0, 1, 1]  # as often as it is in a subset
    generator = torch.Generator().manual_seed(3)
    trained = [
        [[torch.randn(s, generator=generator) for s in ((3, 2), (4,), ())] for _ in range(k)] for k in times
    ]
    sent = [
        Update(
            1,
            client,
            n,
            dict(zip("abc", update, strict=True)),
            {"rscfed/labelled": torch.tensor([float(has)])},
        )
        for client, n, has, updates in zip(clients, images, labelled, trained, strict=True)
        for update in updates
    ]
    found = weights_of(method, sent, ctx)
    expected = slow_consensus(trained, images, labelled, subsets, (7.0, 21.0), 6.0 if twice else 1.0)
    close(mean_of([update for updates in trained for update in updates], found), expected)


def weights_of(method: Method, sent: Sequence[Update], begun: ServerContext) -> Sequence[float]:
    kept = [namespace(method.receive_all(update), method.name) for update in sent]
    ctx = replace(
        begun,
        weights=dict(sent[0].weights),
        clients=[update.client for update in sent],
        samples=[update.samples for update in sent],
        rule_weights=[1.0] * len(sent),
        updates=[update.weights for update in sent],
    )
    return method.weights(ctx, kept)


# FedMatch with labels at the server


def test_the_server_of_fedmatch_trains_sigma_and_leaves_psi() -> None:
    method = FedMatch(lr=0.02, momentum=0.5, supervised=3.0)
    received = method.initial(Toy(1).state_dict())
    ctx = context(method, extras={})
    ctx.task = replace(ctx.task, weights=received)
    images, labels, none = drawn(5, 11), [0, 1, 2, 3, 1], torch.zeros(0, 1, 3, 3)
    own = Batch(images, torch.tensor(labels), none, none, none, torch.zeros(0, dtype=torch.int64))
    names = ("mix", "classifier.weight", "classifier.bias")
    sigma = [received[f"sigma.{name}"].double().numpy() for name in names]
    psi = [received[f"psi.{name}"].double().numpy() for name in names[:2]] + [np.zeros(CLASSES)]
    close(psi[:2], [0.2 * value for value in sigma[:2]])
    speed = [np.zeros_like(value) for value in sigma]
    for _ in range(3):
        theta = [a + b for a, b in zip(sigma, psi, strict=True)]
        slope = of_cross_entropy(theta, images, labels, [True] * 5)
        speed = [0.5 * v + 3.0 * g for v, g in zip(speed, slope, strict=True)]
        sigma = [a - 0.02 * v for a, v in zip(sigma, speed, strict=True)]
        method.learn(own, ctx)
    found = method.learned(ctx)
    close([found[f"sigma.{name}"].double().numpy() for name in names], sigma)
    for name in names[:2]:
        assert torch.equal(found[f"psi.{name}"], received[f"psi.{name}"])
    assert ctx.losses.keys() == {"supervised"}
