"""What methods and add-ons hand to their losses: which rows, whose probabilities, which labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from proxyfl.core.errors import MethodError
from proxyfl.core.state import Update
from proxyfl.federation.pseudo_metrics import count_decisions
from proxyfl.methods import create
from proxyfl.methods.addons import tune_proxies
from proxyfl.methods.base import Method
from proxyfl.methods.context import ClientContext, ServerContext
from toybox import Told, little_config, make_simulation, play
from toyclient import (
    CLASSES,
    CPU,
    LABELLED,
    PRIOR,
    UNLABELLED,
    Toy,
    batch,
    context,
    network,
    slow_logits,
    softmax,
    step,
)


def watched(ctx: ClientContext, truth: Tensor | None = None) -> dict[str, float]:
    """What the client's decisions so far amount to."""
    pool = torch.arange(UNLABELLED)
    return count_decisions(ctx.decisions, pool, None if truth is None else lambda index: truth[index])


def addon(method: Method, name: str) -> Any:
    return next(part for part in method.addons if part.name == name)


def test_probabilities_come_from_the_right_model_and_view() -> None:
    ctx = context(create("proxyfl"))
    outputs = ctx.forward(batch())
    assert np.allclose(outputs.global_weak.numpy(), softmax(slow_logits(1, batch().u_weak)), atol=1e-6)
    assert np.allclose(outputs.global_x.numpy(), softmax(slow_logits(1, batch().x)), atol=1e-6)
    assert np.allclose(outputs.local_weak.numpy(), softmax(slow_logits(2, batch().u_weak)), atol=1e-6)
    assert np.allclose(outputs.x.detach().numpy(), slow_logits(2, batch().x), atol=1e-5)
    assert np.allclose(outputs.strong.detach().numpy(), slow_logits(2, batch().u_strong), atol=1e-5)
    assert not outputs.local_weak.requires_grad
    assert not outputs.global_weak.requires_grad
    assert outputs.strong.requires_grad


def test_without_teacher_x_the_labelled_rows_are_not_there_and_say_so() -> None:
    outputs = context(create("fixmatch-gpl")).forward(batch())
    assert outputs.global_weak.shape == (UNLABELLED, CLASSES)
    with pytest.raises(MethodError, match="teacher_x"):
        _ = outputs.global_x


TAU = 0.6


@pytest.mark.parametrize("teacher", ["local", "global"])
@pytest.mark.parametrize("mask", ["local", "global", "either", "all"])
@pytest.mark.parametrize("strict", [False, True])
def test_fixmatch_labels_and_masks(teacher: str, mask: str, strict: bool) -> None:
    method = create("fixmatch-lpl", {"teacher": teacher, "mask": mask, "tau": TAU, "strict": strict})
    outputs = step(context(method))
    local, glob = (softmax(slow_logits(seed, batch().u_weak)) for seed in (2, 1))
    assert outputs.pseudo is not None
    assert outputs.pseudo.label.tolist() == (local if teacher == "local" else glob).argmax(1).tolist()
    sure_local, sure_global = local.max(1) >= TAU, glob.max(1) >= TAU
    expected = {
        "local": sure_local,
        "global": sure_global,
        "either": sure_local | sure_global,
        "all": np.ones(UNLABELLED),
    }[mask]
    assert outputs.pseudo.mask.tolist() == expected.astype(bool).tolist()
    # the example tells all rules apart
    assert len({tuple(sure_local), tuple(sure_global), tuple(sure_local | sure_global), (True,) * 6}) == 4


@pytest.mark.parametrize(("strict", "expected"), [(False, [True, True, False]), (True, [True, False, False])])
def test_reaching_or_exceeding_the_threshold(strict: bool, expected: list[bool]) -> None:
    method = create("fixmatch-lpl", {"tau": 0.75, "strict": strict})
    rows = torch.tensor([[0.8, 0.2], [0.25, 0.75], [0.26, 0.74]])
    assert method.confident(rows).tolist() == expected


@pytest.mark.parametrize("over", ["batch", "selected"])
@pytest.mark.parametrize("name", ["fixmatch-gpl", "proxyfl"])
def test_the_unlabelled_loss_looks_at_strong_views(name: str, over: str) -> None:
    method = create(name, {"mask": "global", "tau": TAU, "over": over, "weight": 3.0})
    ctx = context(method)
    outputs = step(ctx)
    teacher, strong = softmax(slow_logits(1, batch().u_weak)), softmax(slow_logits(2, batch().u_strong))
    chosen = teacher.max(1) >= TAU
    terms = -np.log(strong[np.arange(UNLABELLED), teacher.argmax(1)])
    expected = 3 * terms[chosen].sum() / (UNLABELLED if over == "batch" else chosen.sum())
    assert method.losses(outputs, ctx)["unlabelled"].item() == pytest.approx(expected, rel=1e-4)


def test_the_supervised_loss() -> None:
    method = create("fedavg")
    outputs = step(context(method), batch(LABELLED, 0))
    p = softmax(slow_logits(2, batch().x))
    expected = -np.log(p[np.arange(LABELLED), np.arange(LABELLED) % CLASSES]).mean()
    assert method.supervised(outputs).item() == pytest.approx(expected, rel=1e-5)
    nobody = step(context(method), batch(0, UNLABELLED))
    assert method.supervised(nobody).item() == 0.0


def test_a_local_teacher_in_eval_mode_takes_a_pass_of_its_own() -> None:
    method = create("fixmatch-lpl", {"teacher_mode": "eval"})
    ctx = context(method)
    seen: list[bool] = []
    ctx.model.register_forward_hook(lambda module, _, __: seen.append(module.training))
    ctx.model.train()
    step(ctx)
    assert seen == [False]
    assert ctx.model.training


def slow_icpl(
    rows: np.ndarray,
    proxies: np.ndarray,
    glob: np.ndarray,
    sure: np.ndarray,
    scores: np.ndarray,
    sets: list[set[int]],
    anchors: range,
    positive_only: bool,
) -> list[float]:
    """One loss per anchor, straight from the definition."""
    f = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    v = proxies / np.linalg.norm(proxies, axis=1, keepdims=True)
    losses = []
    for r in anchors:
        shares = {int(glob[r].argmax()): 1.0} if sure[r] else {c: scores[r][c] for c in sets[r]}
        pos = sum(share * (f[r] @ v[c]) for c, share in shares.items())
        total = math.exp(pos)
        for q in range(len(f)):
            s = f[r] @ f[q]
            if q != r and not sets[r] & sets[q] and (s >= 1e-6 or not positive_only):
                total += math.exp(s)
        losses.append(-pos + math.log(total))
    return losses


def slow_sets(probs: np.ndarray, sure: np.ndarray) -> list[set[int]]:
    found = []
    for p, certain in zip(probs, sure, strict=True):
        above = {c for c in range(CLASSES) if p[c] > PRIOR[c].item()}
        found.append({int(p.argmax())} if certain or not above else above)
    return found


def features(images: list[Tensor]) -> np.ndarray:
    return Toy(2).features(torch.cat(images)).detach().double().numpy()


def test_icpl_as_released() -> None:
    """Labelled rows first, then both views; everything from the global model; projected by both heads."""
    method = create("proxyfl", {"tau": TAU})
    ctx = context(method)
    term = addon(method, "icpl").term(step(ctx), ctx)
    given = batch()
    glob = softmax(np.concatenate([slow_logits(1, given.x), *[slow_logits(1, given.u_weak)] * 2]))
    local_weak, global_weak = softmax(slow_logits(2, given.u_weak)), softmax(slow_logits(1, given.u_weak))
    sure_u = (local_weak.max(1) >= TAU) | (global_weak.max(1) >= TAU)
    sure = np.concatenate([glob[:LABELLED].max(1) >= TAU, sure_u, sure_u])
    heads = ctx.model.heads
    f, bias, r = (
        t.detach().double().numpy() for t in (heads.feature.weight, heads.feature.bias, heads.proxy.weight)
    )
    rows = features([given.x, given.u_weak, given.u_strong]) @ f.T + bias
    proxies = ctx.model.classifier.weight.detach().double().numpy() @ r.T
    anchors = range(LABELLED, LABELLED + 2 * UNLABELLED)
    losses = slow_icpl(rows, proxies, glob, sure, glob, slow_sets(glob, sure), anchors, positive_only=True)
    assert term.item() == pytest.approx(float(np.mean(losses)), rel=1e-4)
    assert 0 < sure[LABELLED:].sum() < 2 * UNLABELLED  # both kinds of anchors are met


def test_icpl_as_printed() -> None:
    """Weak rows only, raw classifier rows, local scores, true classes of labelled images, two means."""
    method = create("proxyfl", {"tau": TAU}, "paper")
    ctx = context(method)
    assert not hasattr(ctx.model, "heads")
    term = addon(method, "icpl").term(step(ctx), ctx)
    given = batch()
    truth = np.eye(CLASSES)[given.y.numpy()]
    glob = np.concatenate([truth, softmax(slow_logits(1, given.u_weak))])
    local = np.concatenate([truth, softmax(slow_logits(2, given.u_weak))])
    sure = np.concatenate([np.ones(LABELLED, bool), glob[LABELLED:].max(1) > TAU])
    rows = features([given.x, given.u_weak])
    proxies = ctx.model.classifier.weight.detach().double().numpy()
    anchors = range(LABELLED, LABELLED + UNLABELLED)
    losses = np.array(
        slow_icpl(rows, proxies, glob, sure, local, slow_sets(glob, sure), anchors, positive_only=False)
    )
    high, low = losses[sure[LABELLED:]], losses[~sure[LABELLED:]]
    assert len(high) > 0
    assert len(low) > 0
    assert term.item() == pytest.approx(high.mean() + low.mean(), rel=1e-4)


@pytest.mark.parametrize(("weight", "factor"), [(0.0, 0.0), (2.5, 2.5)])
def test_the_weight_of_icpl(weight: float, factor: float) -> None:
    values = []
    for w in (1.0, weight):
        method = create("proxyfl", {"tau": TAU, "icpl": {"weight": w}})
        ctx = context(method)
        values.append(addon(method, "icpl").term(step(ctx), ctx).item())
    assert values[1] == pytest.approx(factor * values[0])


@pytest.mark.parametrize("train_proxies", [True, False])
def test_whether_icpl_moves_the_classifier(train_proxies: bool) -> None:
    method = create("proxyfl", {"tau": TAU, "icpl": {"train_proxies": train_proxies, "project": False}})
    ctx = context(method)
    addon(method, "icpl").term(step(ctx), ctx).backward()
    moved = ctx.model.classifier.weight.grad
    assert (moved is not None and bool(moved.abs().sum() > 0)) == train_proxies
    assert ctx.model.mix.grad.abs().sum() > 0


@pytest.mark.parametrize(("rule", "size"), [("top1", 1), ("top5", 4)])
def test_sets_of_the_likeliest(rule: str, size: int) -> None:
    method = create("icpl-only", {"tau": 1.0, "strict": True, "icpl": {"sets": rule}})
    probs = softmax(slow_logits(1, batch().u_weak))
    sets = addon(method, "icpl")._sets(torch.from_numpy(probs), torch.zeros(UNLABELLED).bool(), PRIOR)
    assert sets.sum(1).tolist() == [size] * UNLABELLED
    assert bool(sets.gather(1, torch.from_numpy(probs).argmax(1, keepdim=True)).all())


def test_icpl_tells_the_watcher_about_sets_of_weak_rows() -> None:
    method = create("proxyfl", {"tau": TAU})
    truth = torch.arange(UNLABELLED) % CLASSES
    ctx = context(method)
    addon(method, "icpl").term(step(ctx), ctx)
    counts = watched(ctx, truth)
    glob, local = (softmax(slow_logits(seed, batch().u_weak)) for seed in (1, 2))
    sure = (glob.max(1) >= TAU) | (local.max(1) >= TAU)
    sets = slow_sets(glob, sure)
    low = [i for i in range(UNLABELLED) if not sure[i]]
    assert counts["pseudo/low"] == len(low)
    assert counts["pseudo/set_size"] == sum(len(sets[i]) for i in low)
    assert counts["pseudo/set_right"] == sum(int(truth[i]) in sets[i] for i in low)
    assert counts["pseudo/visits"] == UNLABELLED
    assert counts["pseudo/selected"] == sure.sum()


def test_only_the_last_local_epoch_is_shown() -> None:
    ctx = context(create("proxyfl"), epochs=2)
    step(ctx)
    assert watched(ctx) == {}
    ctx.epoch = 1
    step(ctx)
    assert watched(ctx)["pseudo/visits"] == UNLABELLED


@pytest.mark.parametrize("name", ["fedavg+icpl", "fixmatch-gpl+icpl", "proxyfl"])
def test_without_unlabelled_images_icpl_has_nothing_to_say(name: str) -> None:
    method = create(name)
    ctx = context(method)
    outputs = step(ctx, batch(LABELLED, 0))
    assert ctx.terms(outputs).keys() <= {"prox"}


def test_a_parent_without_pseudo_labels_of_its_own_lends_icpl_the_global_ones() -> None:
    method = create("fedavg+icpl", {"tau": TAU})
    ctx = context(method)
    outputs = step(ctx)
    teacher = softmax(slow_logits(1, batch().u_weak))
    assert outputs.pseudo is not None
    assert outputs.pseudo.mask.tolist() == (teacher.max(1) >= TAU).tolist()
    assert ctx.terms(outputs)["icpl"].item() > 0
    assert watched(ctx)["pseudo/visits"] == UNLABELLED


@pytest.mark.parametrize("labelled", ["true", "predicted"])
def test_counts_for_the_prior(labelled: str) -> None:
    method = create("proxyfl", {"tau": TAU, "prior": {"labelled": labelled}})
    ctx = context(method, epochs=2)
    method.begin_all(ctx)
    outputs = step(ctx)
    method.observe_all(outputs, ctx)  # first of two epochs: does not count
    ctx.epoch = 1
    for _ in range(2):  # visits are counted, not images
        method.observe_all(outputs, ctx)
    glob, local = (softmax(slow_logits(seed, batch().u_weak)) for seed in (1, 2))
    sure = (glob.max(1) >= TAU) | (local.max(1) >= TAU)
    mine = batch().y.numpy() if labelled == "true" else slow_logits(1, batch().x).argmax(1)
    expected = 2 * np.bincount(np.concatenate([mine, glob.argmax(1)[sure]]), minlength=CLASSES)
    assert method.finish_all(ctx)["prior/counts"].tolist() == expected.tolist()


def server(method: Method) -> ServerContext:
    state = network(1, method.needs_heads).state_dict()
    ctx = ServerContext(1, 1, CLASSES, CPU, dict(state), {"prior/classes": PRIOR})
    ctx.clients, ctx.samples = [4, 7], [10, 10]
    return ctx


def test_gpt_replaces_the_averaged_rows_and_nothing_else() -> None:
    method = create("fixmatch-gpl+gpt", {"gpt": {"epochs": 3, "batch": 0}})
    ctx = server(method)
    before = {name: value.clone() for name, value in ctx.weights.items()}
    rows = [Toy(seed).classifier.weight.detach() for seed in (2, 3)]
    updates = [Update(1, k, 10, {"classifier.weight": w}) for k, w in zip((4, 7), rows, strict=True)]
    method.serve_all(ctx, [method.receive_all(update) for update in updates])
    local = torch.stack(rows)
    expected = tune_proxies(before["classifier.weight"], local, epochs=3, lr=0.005)
    assert torch.equal(ctx.weights["classifier.weight"], expected)
    assert not torch.equal(expected, before["classifier.weight"])
    for name in before.keys() - {"classifier.weight"}:
        assert torch.equal(ctx.weights[name], before[name]), name
    assert torch.equal(ctx.snapshots["proxies/tuned"], expected)
    assert ctx.metrics["proxy_loss"]["after"] < ctx.metrics["proxy_loss"]["before"]


def test_gpt_says_which_layer_it_needs() -> None:
    method = create("fedavg+gpt")
    with pytest.raises(MethodError, match=r"proxy tuning .*classifier"):
        method.start_all(ServerContext(1, 1, 2, CPU, {"head.weight": torch.ones(2, 2)}, {}))


def test_the_prior_is_followed_on_the_server() -> None:
    method = create("fixmatch-gpl+prior", {"prior": {"ema": 0.5}})
    ctx = server(method)
    counts = [torch.tensor([4.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 4.0])]
    updates = [Update(1, k, 10, {}, {"prior/counts": n}) for k, n in zip((4, 7), counts, strict=True)]
    extras = method.serve_all(ctx, [method.receive_all(update) for update in updates])
    assert extras["prior/classes"].tolist() == pytest.approx([0.45, 0.15, 0.1, 0.3])
    assert ctx.metrics["prior"] == pytest.approx([0.45, 0.15, 0.1, 0.3])
    assert ctx.metrics["class_counts"] == {"4": [4.0, 0.0, 0.0, 0.0], "7": [0.0, 0.0, 0.0, 4.0]}
    fixed = create("fixmatch-gpl+prior", {"prior": {"fixed": True}})
    assert fixed.serve_all(server(fixed), [method.receive_all(u) for u in updates])["prior/classes"] is PRIOR
    assert fixed.start_all(server(fixed))["prior/classes"].tolist() == [0.25] * 4


def test_the_pull_is_towards_what_was_received() -> None:
    method = create("fedprox", {"prox": {"weight": 2.0}})
    ctx = context(method)
    ctx.model = network(1, False)
    method.begin_all(ctx)
    ctx.model.load_state_dict(network(2, False).state_dict())
    term = ctx.terms(step(ctx, batch(LABELLED, 0)))["prox"]
    a, b = Toy(1), Toy(2)
    distance = sum(
        float((p - q).detach().double().square().sum())
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )
    assert term.item() == pytest.approx(distance, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "labelled", "expected"),
    [("matched", 250, 19), ("labelled", 250, 2), ("labelled", 128, 1), ("labelled", 129, 2)],
)
def test_steps_of_labelled_only_training(steps: str, labelled: int, expected: int) -> None:
    assert create("fedavg", {"steps": steps}).steps_per_epoch(labelled, 19, 128) == expected


def test_steps_taken_in_a_round(tmp_path: Any) -> None:
    simulation = make_simulation((10, 10), (54, 54))
    for steps, expected in (("matched", 16), ("labelled", 4)):  # 64 // 8 and ceil(10 / 8), two clients
        told = Told()
        config = little_config("fedavg", clients=2, rounds=1, method__steps=steps)
        play(config, simulation, tmp_path, observers=[told])
        taken = [answer.metrics["steps"] for kind, answer in told.calls if kind == "answered"]
        assert sum(taken) == expected


def test_the_upper_bound_sees_every_label_once_an_epoch() -> None:
    simulation = make_simulation((4, 0), (28, 20))
    for client, count in ((0, 32), (1, 20)):
        data = create("fedavg-sl").rearrange(simulation.holdings.client(client, oracle=True))
        assert len(data.labelled) == count
        assert len(data.unlabelled) == 0
        assert torch.equal(data.labels, simulation.dataset.train.labels[data.labelled])
        plain = simulation.holdings.client(client)
        assert set(data.labelled.tolist()) == set(plain.labelled.tolist()) | set(plain.unlabelled.tolist())
        assert len(plain.labels) == len(plain.labelled) == (4, 0)[client]
    assert create("fedavg-sl").walks_labelled
    assert not create("fedavg-sl").needs_labels
