"""The plain baseline does the library's work: same losses, gradients, schedule, counts and tuned proxies."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Sampler

from proxyfl.core.config import TrainSettings
from proxyfl.core.state import Task
from proxyfl.data import augment
from proxyfl.data.stream import Batch, ClientData, Stream, ViewSettings
from proxyfl.methods import create
from proxyfl.methods.addons import icpl_loss
from proxyfl.methods.addons.gpt import proxy_loss, proxy_margin, tune_proxies
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.models import build

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import plain

LABELLED, UNLABELLED, TAU, LR = 12, 24, 0.95, 0.01
SHARPNESS = {10: 3.0, 100: 6.0}
CPU = torch.device("cpu")
WANTS = frozenset({"x", "u_weak", "u_strong"})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(classes: int, seed: int) -> nn.Module:
    """A network with sharp opinions that differ from image to image, so that some are sure and some not."""
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        net = build("resnet8", classes, 3, 1, heads=True)
    rows, bias = net.get_parameter("classifier.weight"), net.get_parameter("classifier.bias")
    with torch.no_grad():
        features = net.eval().features(patterns(64, seeded(8)))  # type: ignore[operator]
        rows *= SHARPNESS[classes] / (features @ rows.T).std(0).mean()
        bias.copy_(-features.mean(0) @ rows.T)
    return net


def patterns(count: int, generator: torch.Generator) -> Tensor:
    """Images of four plain squares."""
    return 2 * F.interpolate(torch.randn(count, 3, 2, 2, generator=generator), size=16)


def draw_batch(classes: int) -> Batch:
    generator = seeded(3)
    x, weak, strong = (patterns(n, generator) for n in (LABELLED, UNLABELLED, UNLABELLED))
    labels = torch.randint(classes, (LABELLED,), generator=generator)
    return Batch(x, labels, x[:0], weak, strong, torch.arange(UNLABELLED))


def draw_prior(classes: int) -> Tensor:
    return (torch.randn(classes, generator=seeded(4)) / 2).softmax(0)


def context(classes: int, trained: int = 2) -> ClientContext:
    """The library's client: received network 1 and has trained on to network ``trained``."""
    method = create("proxyfl")
    task = Task(1, 0, network(classes, 1).state_dict(), {"prior/classes": draw_prior(classes)})
    ctx = ClientContext(
        method=method,
        model=network(classes, trained).train(),
        stream=None,  # type: ignore[arg-type]
        task=task,
        settings=TrainSettings(epochs=1, lr=LR),
        classes=classes,
        rounds=1,
        seed=1,
        device=CPU,
        autocast=nullcontext,
        initial=dict,
    )
    method.begin_all(ctx)
    return ctx


def ours(classes: int) -> tuple[ClientContext, Outputs, dict[str, Tensor]]:
    """The library's outputs and losses on the batch."""
    ctx = context(classes)
    method, outputs = ctx.method, ctx.forward(draw_batch(classes))
    method.decide(outputs, ctx)
    losses = {"supervised": method.supervised(outputs)} | method.losses(outputs, ctx) | ctx.terms(outputs)
    return ctx, outputs, losses


def theirs(classes: int) -> tuple[nn.Module, nn.Module, plain.PlainBatch]:
    batch = draw_batch(classes)
    return (
        network(classes, 2).train(),
        network(classes, 1).eval(),
        plain.PlainBatch(batch.x, batch.y, batch.u_weak, batch.u_strong),
    )


@pytest.mark.parametrize("classes", [10, 100])
def test_each_loss_and_all_gradients(classes: int) -> None:
    ctx, outputs, expected = ours(classes)
    assert outputs.pseudo is not None
    assert 3 < int(outputs.pseudo.mask.sum()) < UNLABELLED - 3, "the batch needs sure and unsure images"
    model, global_model, batch = theirs(classes)
    found = plain.plain_losses(model, global_model, batch, draw_prior(classes), TAU)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.item() > 0.05
        assert found[name].item() == pytest.approx(value.item(), abs=1e-4), name

    torch.stack(list(expected.values())).sum().backward()
    torch.stack(list(found.values())).sum().backward()
    assert all(parameter.grad is None for parameter in global_model.parameters())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in ctx.model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-4, rtol=1e-3, msg=name)


def test_the_graph_through_the_global_model_is_kept() -> None:
    outputs = plain.plain_forward(*theirs(10), plain.Clock())
    assert outputs.teacher.requires_grad
    assert outputs.teacher.shape == (LABELLED + UNLABELLED, 10)


@pytest.mark.parametrize("seed", range(5))
def test_icpl_of_features_in_all_directions(seed: int) -> None:
    generator = seeded(seed)
    features, proxies = (torch.randn(n, 6, generator=generator) for n in (60, 8))
    probs = (2 * torch.randn(60, 8, generator=generator)).softmax(1)
    confident, prior = probs.amax(1) >= 0.7, draw_prior(8)
    expected = icpl_loss(features, proxies, probs, confident, prior, labelled=12)
    found = plain.plain_icpl(features, proxies, probs, confident, prior, 12)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_steps_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that bypass the views: optimiser, batch norm, teacher and counts over three steps."""
    ctx, batch = context(10, trained=1), draw_batch(10)
    for _ in range(3):
        ctx.method.observe_all(ctx.method.step(batch, ctx), ctx)
    known, unknown = [(batch.x, batch.y)] * 3, [(batch.u_weak, batch.u_strong)]
    monkeypatch.setattr(plain, "loaders", lambda data, settings: (known, unknown, 3))
    start, counts = network(10, 1).state_dict(), torch.zeros(10)
    settings = plain.PlainSettings(epochs=1, lr=LR)
    updated, _ = plain.plain_round(
        network(10, 2), start, client(), settings, prior=draw_prior(10), counts=counts
    )
    assert counts.tolist() == ctx.memory["prior"].tolist()
    for name, value in ctx.model.state_dict().items():
        torch.testing.assert_close(updated[name], value, atol=1e-4, rtol=1e-3, msg=name)


def test_class_counts() -> None:
    ctx, outputs, _ = ours(10)
    ctx.method.observe_all(outputs, ctx)
    model, global_model, batch = theirs(10)
    counts = torch.zeros(10)
    plain._count(plain.plain_forward(model, global_model, batch, plain.Clock()), batch, TAU, counts)
    assert counts.tolist() == ctx.memory["prior"].tolist()


class SameOrder(Sampler[int]):
    """A new permutation for each pass, as the library draws it."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self.count, self.generator = count, generator

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count, generator=self.generator).tolist()

    def __len__(self) -> int:
        return self.count


def test_proxy_tuning_in_the_same_order() -> None:
    local = torch.randn(5, 6, 16, generator=seeded(5)) / 2
    average = local.mean(0)
    expected = tune_proxies(average, local, epochs=8, lr=0.02, batch=4, generator=seeded(9))
    found = plain.plain_tuning(average, local, epochs=8, lr=0.02, batch=4, sampler=SameOrder(30, seeded(9)))
    assert float((expected - average).abs().max()) > 0.05
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    shuffled = plain.plain_tuning(average, local, epochs=8, lr=0.02, batch=4, seed=1)
    assert float((shuffled - expected).abs().max()) < float((expected - average).abs().max()) / 2
    margin = proxy_margin(average)
    before, after = (float(proxy_loss(p, local, margin_value=margin)) for p in (average, shuffled))
    assert after < before


def client(count: int = 90, labelled: int = 7, channels: int = 3, size: int = 8) -> ClientData:
    generator = seeded(6)
    images = torch.randint(256, (count, channels, size, size), generator=generator).to(torch.uint8)
    labels = torch.randint(10, (labelled,), generator=generator)
    return ClientData(images, torch.arange(labelled), labels, torch.arange(labelled, count))


@pytest.mark.parametrize("count", [90, 20])
def test_schedule(count: int) -> None:
    data, views = client(count), ViewSettings(True, (0.5,) * 3, (0.25,) * 3)
    stream = Stream(data, TrainSettings(batch=16), views, WANTS, seeded(), CPU)
    labelled, unlabelled, steps = plain.loaders(data, plain.PlainSettings(batch=16))
    batch = next(stream.epoch())
    assert steps == stream.steps == max(1, count // 16)
    assert len(labelled) == steps
    assert next(iter(labelled))[0].shape == batch.x.shape
    weak, strong = next(iter(unlabelled))
    assert weak.shape == batch.u_weak.shape
    assert strong.shape == batch.u_strong.shape


def test_a_round_moves_the_weights_and_counts_the_last_epoch() -> None:
    net = network(10, 1)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    settings = plain.PlainSettings(epochs=2, batch=16, lr=0.01)
    counts = torch.zeros(10)
    updated, seconds = plain.plain_round(net, weights, client(), settings, counts=counts)
    assert updated.keys() == weights.keys()
    assert int(updated["trunk.stem.norm.num_batches_tracked"]) == 2 * 5
    assert not torch.equal(updated["classifier.weight"], weights["classifier.weight"])
    assert 5 * 16 <= int(counts.sum()) <= 5 * (16 + 32)
    parts = {"set-up", "views", "forward", "global model", "losses", "backward", "optimiser", "counting"}
    assert seconds.keys() == parts
    assert min(seconds.values()) > 0


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("position", range(len(augment.OPERATIONS)))
def test_operations_are_the_library_s(position: int, channels: int) -> None:
    image = client(channels=channels, size=32).images[0]
    operation = list(augment.OPERATIONS.values())[position]
    for v in (-9, -4, 1, 6):
        array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        picture = Image.fromarray(array[..., 0] if channels == 1 else array)
        found = torch.from_numpy(np.array(plain.OPERATIONS[position](picture, v)))
        found = found[None] if channels == 1 else found.permute(2, 0, 1)
        expected = operation(image[None], torch.tensor([v]))[0]
        assert int((found.int() - expected.int()).abs().max()) <= 1


def test_hole_is_the_library_s() -> None:
    class Fixed(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return next(centre)

    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    for centres in ([3.2, 30.9], [16.0, 11.7], [31.9, 0.1]):
        centre = iter(centres)
        picture = Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8))
        found = torch.from_numpy(np.array(plain._cutout(picture, Fixed()))).permute(2, 0, 1)
        assert torch.equal(found, augment.punch(black, torch.tensor(centres)[:, None])[0])


def test_the_usual_form_of_the_network_is_the_same_network() -> None:
    with torch.random.fork_rng(devices=[]):
        net = build("resnet8", 3, 3, 1)
    usual = plain.usual_form(copy.deepcopy(net))
    x = torch.rand(4, 3, 16, 16)
    assert [*usual.state_dict()] == [*net.state_dict()]
    assert usual.trunk.stage2.skip.conv.stride == (2, 2)
    torch.testing.assert_close(usual(x), net(x))
