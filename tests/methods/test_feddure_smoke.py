"""FedDure: the gradient of the fine regulator, the order of a step, and what a client keeps and sends."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from feddure_steps import regulator_gradient, weighted_step
from torch import Tensor, nn

from proxyfl.core.config import Config
from proxyfl.data.stream import Batch
from proxyfl.methods import feddure
from proxyfl.methods.context import ClientContext, Outputs
from proxyfl.methods.feddure import FedDure, labelled_loss, new_regulator, trusted
from proxyfl.runs.simulation import Simulation, prepare
from toybox import Told, little_config, make_simulation, play, same_bits, same_state

CPU = torch.device("cpu")


class Small(nn.Module):
    """A convolution with batch norm and a linear layer, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.classifier = nn.Linear(3, 4)
        self.unused = nn.Linear(2, 2)
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.7, generator=generator)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.softplus(self.norm(self.conv(images))).mean((2, 3))
        logits: Tensor = self.classifier(hidden)
        return logits


def drawn_problem() -> tuple[Any, ...]:
    """Network, its weights, strong views with labels, labelled images with labels."""
    generator = torch.Generator().manual_seed(5)
    model = Small()
    phi = {name: value.detach().clone() for name, value in model.named_parameters()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    strong, x = (torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64) for n in (7, 5))
    labels, y = (torch.randint(4, (n,), generator=generator) for n in (7, 5))
    return model, phi, buffers, strong, labels, x, y


def test_regulator_gradient_agrees_with_finite_differences() -> None:
    model, phi, buffers, strong, labels, x, y = drawn_problem()
    regulator = new_regulator(4, 6, torch.Generator().manual_seed(2), CPU).double()
    found = regulator_gradient(model, phi, buffers, regulator, strong, labels, x, y, lr=0.9)
    model.train()
    probabilities = torch.func.functional_call(model, {**phi, **copy.deepcopy(buffers)}, (strong,)).softmax(1)

    def loss_after_virtual_step() -> float:
        with torch.no_grad():
            weights = regulator(probabilities)[:, 0]
        moved = weighted_step(model, phi, buffers, strong, labels, weights, 0.9)
        return float(labelled_loss(model, moved, buffers, x, y))

    assert found.keys() == dict(regulator.named_parameters()).keys()
    assert max(float(value.abs().max()) for value in found.values()) > 1e-3
    for name, parameter in regulator.named_parameters():
        flat, slope = parameter.data.view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
        for k in range(len(flat)):
            sides = []
            for shift in (1e-5, -2e-5):
                flat[k] += shift
                sides.append(loss_after_virtual_step())
            flat[k] += 1e-5
            slope[k] = (sides[0] - sides[1]) / 2e-5
        torch.testing.assert_close(found[name].view(-1), slope, rtol=1e-6, atol=1e-9)


def test_weighted_step_in_numbers() -> None:
    """Two images 1 and 2 with labels 0 and 1 at zero weights: every gradient is (1/2 - label) times image."""
    model = nn.Linear(1, 2, bias=False)
    phi = {"weight": torch.zeros(2, 1)}
    images, labels = torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])
    moved = weighted_step(model, phi, {}, images, labels, torch.tensor([0.5, 1.0]), 0.1)
    # class 0: mean(0.5 * -0.5 * 1, 1 * 0.5 * 2) = 0.375, class 1 the opposite; times -0.1
    torch.testing.assert_close(moved["weight"], torch.tensor([[-0.0375], [0.0375]]))
    assert not moved["weight"].requires_grad
    assert torch.equal(phi["weight"], torch.zeros(2, 1))
    loss = labelled_loss(model, phi, {}, images, labels)
    assert float(loss) == pytest.approx(math.log(2))


@pytest.mark.parametrize("training", [True, False])
def test_passes_use_batch_statistics_and_leave_everything_as_it_was(training: bool) -> None:
    model, phi, buffers, strong, labels, x, y = drawn_problem()
    model.train(training)
    before = copy.deepcopy(model.state_dict()), copy.deepcopy(buffers)
    images = (strong - strong.mean()) * 3 + 2  # far from the running statistics
    loss = labelled_loss(model, phi, buffers, images, labels)
    shifted = labelled_loss(
        model, phi, {**buffers, "norm.running_mean": torch.full((3,), 9.0).double()}, images, labels
    )
    assert torch.equal(loss, shifted)
    weighted_step(model, phi, buffers, strong, labels, torch.ones(7), 0.1)
    regulator_gradient(
        model, phi, buffers, new_regulator(4, 6, torch.Generator(), CPU).double(), strong, labels, x, y, 0.1
    )
    assert model.training == model.norm.training == training
    assert same_bits(model.state_dict(), before[0])
    assert same_bits(buffers, before[1])
    expected = F.cross_entropy(copy.deepcopy(model).train()(images), labels)
    torch.testing.assert_close(loss, expected)


def test_regulator_is_drawn_from_its_generator_alone() -> None:
    torch.manual_seed(1)
    untouched = torch.random.get_rng_state()
    one, again = (new_regulator(10, 128, torch.Generator().manual_seed(8), CPU) for _ in range(2))
    other = new_regulator(10, 128, torch.Generator().manual_seed(9), CPU)
    assert torch.equal(torch.random.get_rng_state(), untouched)
    assert same_bits(one.state_dict(), again.state_dict())
    assert not same_bits(one.state_dict(), other.state_dict())
    assert sum(p.numel() for p in one.parameters()) == 10 * 128 + 128 + 128 + 1
    weights = trusted(one, torch.eye(10))
    assert weights.shape == (10,)
    assert 0 < float(weights.detach().min()) <= float(weights.detach().max()) < 1


@pytest.fixture(scope="module")
def digits() -> Simulation:
    return prepare(little_config("fedavg", subset=200))


def config(**settings: Any) -> Config:
    return little_config("feddure", subset=200, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["paper", "release"])
def test_two_rounds_send_the_model_only(variant: str, digits: Simulation, tmp_path: Path) -> None:
    states = []
    for name in ("one", "two"):
        told = Told()
        settings = config(method__variant=variant)
        states.append(play(settings, digits, tmp_path / name, observers=[told]))
    assert same_state(*states)
    assert states[0].versions == {}
    assert states[0].extras == {}
    updates = [answer for call, answer in told.calls if call == "answered"]
    assert len(updates) == 4
    for update in updates:
        assert update.extras == {}
        assert update.weights.keys() == states[0].weights.keys()
        assert all(bool(torch.isfinite(value).all()) for value in update.weights.values())
        assert {"loss/supervised", "loss/unlabelled", "loss/feedback"} <= update.metrics.keys()
        assert update.metrics["loss/feedback"] != 0


def test_a_round_starts_from_the_global_model_and_a_new_regulator(
    digits: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, begin = [], FedDure.begin

    def noted(self: FedDure, ctx: ClientContext) -> None:
        begin(self, ctx)
        held = ctx.memory["regulators"]
        sent = {name: ctx.task.weights[name] for name in held.phi}
        assert same_bits({name: value.contiguous() for name, value in held.phi.items()}, sent)
        drawn.append(held.fine[0].weight.detach().clone())

    monkeypatch.setattr(FedDure, "begin", noted)
    play(config(), digits, tmp_path)
    assert len(drawn) == 4
    assert all(not torch.equal(a, b) for k, a in enumerate(drawn) for b in drawn[:k])


@pytest.mark.parametrize("sign", ["own", "after-before"])
def test_a_step_in_its_order(
    sign: str, digits: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(a) to (e) again from the pure functions, beside each step of a round."""
    steps, losses_of = [], FedDure.losses

    def checked(self: FedDure, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        held, batch, lr = ctx.memory["regulators"], outputs.batch, ctx.settings.lr
        label, phi, fine = outputs.local_weak.argmax(1), held.phi, copy.deepcopy(held.fine)
        adam = torch.optim.Adam(fine.parameters(), 1e-3)
        adam.load_state_dict(copy.deepcopy(held.optimiser.state_dict()))
        network = copy.deepcopy(ctx.model)
        found = losses_of(self, outputs, ctx)

        gradient = regulator_gradient(
            network, phi, held.buffers, fine, batch.u_strong, label, batch.x, batch.y, lr
        )
        for name, parameter in fine.named_parameters():
            parameter.grad = gradient[name]
        adam.step()
        network.load_state_dict({**phi, **held.buffers})
        trust = fine(network(batch.u_strong).softmax(1))[:, 0].detach()
        moved = weighted_step(network, phi, held.buffers, batch.u_strong, label, trust, lr)
        before, after = (labelled_loss(network, w, held.buffers, batch.x, batch.y) for w in (phi, moved))
        each = F.cross_entropy(outputs.strong, label, reduction="none")
        change = before - after if sign == "own" else after - before
        torch.testing.assert_close(found["unlabelled"], (trust * each).mean())
        torch.testing.assert_close(found["feedback"], change.detach() * each.mean(), rtol=1e-3, atol=1e-6)
        for name in moved:
            torch.testing.assert_close(held.phi[name], moved[name])
        steps.append(ctx.steps)
        return found

    monkeypatch.setattr(FedDure, "losses", checked)
    play(config(rounds=1, per_round=1, method__sign=sign), digits, tmp_path)
    assert len(steps) > 1


def test_the_signs_of_both_variants(digits: Simulation, tmp_path: Path) -> None:
    found = {}
    for variant in ("paper", "release"):
        for sign in ("own", "before-after", "after-before"):
            settings = config(rounds=1, per_round=1, method__variant=variant, method__sign=sign)
            found[variant, sign] = play(settings, digits, tmp_path)
    assert same_state(found["paper", "own"], found["paper", "before-after"])
    assert not same_state(found["paper", "own"], found["paper", "after-before"])
    assert same_state(found["release", "own"], found["release", "after-before"])
    assert not same_state(found["release", "own"], found["release", "before-after"])


def test_teacher_loss_of_the_release_in_numbers(
    digits: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, losses_of = [], FedDure.losses
    monkeypatch.setattr(FedDure, "_student_change", lambda *_: torch.tensor(-2.0))

    def checked(self: FedDure, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        rows, classes = outputs.strong.shape
        found = losses_of(self, outputs, ctx)
        total, own = 0.0, 0.0
        for weak, strong in zip(outputs.local_weak, outputs.strong.detach().softmax(1), strict=True):
            if max(weak) >= 0.2:
                total -= sum(float(weak[c] * strong[c].log()) for c in range(classes))
            own -= math.log(max(strong))
        weight = 3 * min(1, (len(steps) + 1) / 4)
        assert float(found["unlabelled"].detach()) == pytest.approx(weight * total / rows, rel=1e-4)
        assert float(found["feedback"].detach()) == pytest.approx(-2 * own / rows, rel=1e-4)
        steps.append(weight)
        return found

    monkeypatch.setattr(FedDure, "losses", checked)
    options = {"variant": "release", "release_tau": 0.2, "release_weight": 3.0, "release_ramp": 4}
    settings = {f"method__{name}": value for name, value in options.items()}
    play(config(rounds=1, per_round=1, train__epochs=2, **settings), digits, tmp_path)
    assert steps[:5] == [0.75, 1.5, 2.25, 3.0, 3.0]


def test_the_student_of_the_release_learns_the_labels_of_weak_views(
    digits: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s again from a copy of the student: its labelled loss after minus before one step of Adam."""
    found: list[Tensor] = []
    change_of = FedDure._student_change

    def checked(self: FedDure, batch: Batch, label: Tensor, ctx: ClientContext) -> Tensor:
        student, optimiser = ctx.memory["student"]
        model, twin = copy.deepcopy(ctx.model), copy.deepcopy(student)
        adam = torch.optim.Adam(twin.parameters(), 0.01)
        adam.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        assert student is not ctx.model
        found.append(change_of(self, batch, label, ctx))
        assert same_bits(model.state_dict(), ctx.model.state_dict())

        before = F.cross_entropy(twin(batch.x), batch.y)
        F.cross_entropy(twin(batch.u_weak), label).backward()
        adam.step()
        after = F.cross_entropy(twin(batch.x), batch.y)
        torch.testing.assert_close(found[-1], (after - before).detach())
        return found[-1]

    monkeypatch.setattr(FedDure, "_student_change", checked)
    settings = config(rounds=1, per_round=1, method__variant="release", method__release_lr=0.01)
    play(settings, digits, tmp_path)
    assert len(found) > 1
    assert all(not value.requires_grad and float(value) != 0 for value in found)


@pytest.mark.parametrize("at", ["start", "end"])
def test_labelled_steps_of_the_release(
    at: str, digits: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    descend, losses_of = feddure.descend, FedDure.losses

    def noted(loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
        calls.append("labelled")
        descend(loss, optimiser)

    def counted(self: FedDure, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        before = len(calls)
        found = losses_of(self, outputs, ctx)
        del calls[before:]  # the student's own step
        calls.append("step")
        return found

    monkeypatch.setattr(feddure, "descend", noted)
    monkeypatch.setattr(FedDure, "losses", counted)
    options = {"variant": "release", "release_tune": 9, "release_tune_at": at}
    settings = {f"method__{name}": value for name, value in options.items()}
    play(config(rounds=1, per_round=1, **settings), digits, tmp_path)
    ran = calls.count("step")
    tuned = ["labelled"] * 9
    assert 0 < ran < 9  # more than an epoch's batches are drawn for them
    assert calls == (tuned + ["step"] * ran if at == "start" else ["step"] * ran + tuned)


@pytest.mark.parametrize("variant", ["paper", "release"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_clients_without_one_kind_of_image(variant: str, dtype: str, tmp_path: Path) -> None:
    simulation = make_simulation((8, 0, 8, 1), (24, 32, 0, 0), channels=3, classes=3)
    told = Told()
    options = {"per_round": 4, "rounds": 1, "compute__dtype": dtype, "train__pool": "unlabelled"}
    play(config(method__variant=variant, **options), simulation, tmp_path, observers=[told])
    metrics = told.reports[0].metrics
    assert metrics["failed"] == {}
    assert metrics["idle"] == []
    updates = {answer.client: answer.metrics for call, answer in told.calls if call == "answered"}
    assert updates[0]["loss/feedback"] != 0
    assert updates[1]["loss/supervised"] == updates[1]["loss/feedback"] == 0
    assert "loss/unlabelled" not in updates[2]
    assert "loss/unlabelled" not in updates[3]
    if variant == "paper":
        assert updates[1]["loss/unlabelled"] > 0
