"""FedDure's regulators, against a network of plain loops in numpy and central differences through it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from feddure_steps import regulator_gradient, weighted_step
from torch import Tensor, nn

from proxyfl.methods import feddure

Arrays = dict[str, np.ndarray]
SIDE, CHANNELS, HIDDEN, STEP = 4, 2, 4, 1e-5
CASES = [(seed, classes) for classes in (2, 10, 100) for seed in range(2)]


class Net(nn.Module):
    """Convolution, batch normalisation, a smooth bend, the mean over the picture, a classifier."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, CHANNELS, 3, bias=False)
        self.bn = nn.BatchNorm2d(CHANNELS)
        self.classifier = nn.Linear(CHANNELS, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.bn(self.conv(x)).tanh().mean((2, 3)))
        return logits


def slow_logits(phi: Arrays, images: np.ndarray) -> np.ndarray:
    """The same network with the statistics of the batch itself, position by position."""
    width = SIDE - 2
    maps = np.zeros((len(images), CHANNELS, width, width))
    for i, k, r, c in np.ndindex(maps.shape):
        maps[i, k, r, c] = (phi["conv.weight"][k, 0] * images[i, 0, r : r + 3, c : c + 3]).sum()
    features = np.zeros((len(images), CHANNELS))
    for k in range(CHANNELS):
        mean, variance = maps[:, k].mean(), maps[:, k].var()
        normal = (maps[:, k] - mean) / np.sqrt(variance + 1e-5)
        bent = np.tanh(phi["bn.weight"][k] * normal + phi["bn.bias"][k])
        features[:, k] = bent.reshape(len(images), -1).mean(1)
    return features @ phi["classifier.weight"].T + phi["classifier.bias"]


def slow_probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def slow_cross_entropies(phi: Arrays, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    p = slow_probabilities(slow_logits(phi, images))
    return np.array([-np.log(p[i, labels[i]]) for i in range(len(labels))])


def slow_scores(omega: Arrays, p: np.ndarray) -> np.ndarray:
    hidden = np.maximum(p @ omega["0.weight"].T + omega["0.bias"], 0)
    return 1 / (1 + np.exp(-(hidden @ omega["2.weight"].T + omega["2.bias"])[:, 0]))


def slopes(function: Callable[[Arrays], np.ndarray | float], at: Arrays) -> Arrays:
    """Central differences of every output by every single number; the outputs come first."""
    found = {}
    for name, value in at.items():
        columns = []
        for index in np.ndindex(value.shape):
            up, down = value.copy(), value.copy()
            up[index] += STEP
            down[index] -= STEP
            rise = np.asarray(function({**at, name: up})) - np.asarray(function({**at, name: down}))
            columns.append(rise / (2 * STEP))
        found[name] = np.stack(columns, -1).reshape(*columns[0].shape, *value.shape)
    return found


def moved(phi: Arrays, per_image: Arrays, weights: np.ndarray, lr: float) -> Arrays:
    """One step down the mean over all images of weight times cross entropy; the weights are constants."""
    result = {}
    for name, value in phi.items():
        slope = np.zeros_like(value)
        for i, weight in enumerate(weights):
            slope += weight * per_image[name][i] / len(weights)
        result[name] = value - lr * slope
    return result


def arrays(tensors: dict[str, Tensor]) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in tensors.items()}


class Case:
    """A network, a regulator, weighted images with guessed labels and images with true ones, all drawn."""

    def __init__(self, seed: int, classes: int) -> None:
        rng = np.random.default_rng(seed)
        self.model = Net(classes).double().train()
        self.regulator = nn.Sequential(
            nn.Linear(classes, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1), nn.Sigmoid()
        ).double()
        for parameter in (*self.model.parameters(), *self.regulator.parameters()):
            parameter.data = torch.from_numpy(rng.normal(size=parameter.shape))
        # hidden units away from their bend, one of them asleep; scores away from 0 and 1
        self.regulator[0].bias.data = self.regulator[0].weight.abs().amax(1) + 0.1
        self.regulator[0].bias.data[0] *= -1
        self.regulator[2].weight.data *= 0.3
        self.phi = {
            name: torch.from_numpy(rng.normal(size=value.shape))
            for name, value in self.model.named_parameters()
        }
        self.buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        self.strong, self.x = (torch.from_numpy(rng.normal(size=(n, 1, SIDE, SIDE))) for n in (6, 5))
        self.labels, self.y = (torch.from_numpy(rng.integers(classes, size=n)) for n in (6, 5))
        self.weights = torch.from_numpy(rng.uniform(size=6))

    def per_image(self) -> Arrays:
        images, labels = self.strong.numpy(), self.labels.numpy()
        return slopes(lambda phi: slow_cross_entropies(phi, images, labels), arrays(self.phi))

    def everything(self) -> list[Tensor]:
        own = [*self.model.state_dict().values(), *self.regulator.state_dict().values()]
        return [*own, *self.phi.values(), *self.buffers.values()]


def close(found: dict[str, Tensor], expected: Arrays, tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert found[name].flatten().tolist() == pytest.approx(value.ravel().tolist(), abs=tolerance), name


@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_labelled_loss(seed: int, classes: int) -> None:
    case = Case(seed, classes)
    found = feddure.labelled_loss(case.model, case.phi, case.buffers, case.x, case.y)
    expected = slow_cross_entropies(arrays(case.phi), case.x.numpy(), case.y.numpy()).mean()
    assert found.item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("lr", [0.1, 2.0])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_weighted_step(seed: int, classes: int, lr: float) -> None:
    case = Case(seed, classes)
    found = weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, case.weights, lr)
    expected = moved(arrays(case.phi), case.per_image(), case.weights.numpy(), lr)
    close(found, expected, 1e-8)


def test_weightless_images_move_nothing() -> None:
    case = Case(0, 3)
    found = weighted_step(
        case.model, case.phi, case.buffers, case.strong, case.labels, torch.zeros(6).double(), 0.1
    )
    close(found, arrays(case.phi), 1e-15)


def test_the_step_is_a_mean_over_all_images_and_not_over_their_weights() -> None:
    case = Case(1, 3)
    half = torch.full((6,), 0.5).double()
    whole = weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, 2 * half, 0.1)
    found = weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, half, 0.2)
    close(found, arrays(whole), 1e-12)
    first = half * torch.tensor([2.0, 0, 0, 0, 0, 0])
    found = weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, first, 0.1)
    expected = {name: value.numpy() - 0.1 / 6 * case.per_image()[name][0] for name, value in case.phi.items()}
    close(found, expected, 1e-8)


@pytest.mark.parametrize("lr", [0.1, 2.0])
@pytest.mark.parametrize(("seed", "classes"), CASES)
def test_gradient_of_the_regulator(seed: int, classes: int, lr: float) -> None:
    case = Case(seed, classes)
    phi, per_image = arrays(case.phi), case.per_image()
    guessed = slow_probabilities(slow_logits(phi, case.strong.numpy()))

    def loss_after_the_step(omega: Arrays) -> float:
        after = moved(phi, per_image, slow_scores(omega, guessed), lr)
        return float(slow_cross_entropies(after, case.x.numpy(), case.y.numpy()).mean())

    expected = slopes(loss_after_the_step, arrays(dict(case.regulator.named_parameters())))
    assert max(np.abs(value).max() for value in expected.values()) > 1e-4
    found = regulator_gradient(
        case.model, case.phi, case.buffers, case.regulator, case.strong, case.labels, case.x, case.y, lr
    )
    close(found, expected, 1e-8)


def test_gradient_vanishes_without_a_step() -> None:
    case = Case(0, 3)
    found = regulator_gradient(
        case.model, case.phi, case.buffers, case.regulator, case.strong, case.labels, case.x, case.y, 0.0
    )
    close(found, {name: np.zeros(p.shape) for name, p in case.regulator.named_parameters()}, 1e-15)


@pytest.mark.parametrize("seed", range(3))
def test_following_the_gradient_lowers_the_labelled_loss_after_the_step(seed: int) -> None:
    case = Case(seed, 3)

    def loss_after_the_step() -> float:
        with torch.no_grad():
            logits = torch.from_numpy(slow_logits(arrays(case.phi), case.strong.numpy()))
            weights = case.regulator(logits.softmax(1))[:, 0]
        after = weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, weights, 0.5)
        return float(feddure.labelled_loss(case.model, after, case.buffers, case.x, case.y))

    before = loss_after_the_step()
    slope = regulator_gradient(
        case.model, case.phi, case.buffers, case.regulator, case.strong, case.labels, case.x, case.y, 0.5
    )
    with torch.no_grad():
        for name, parameter in case.regulator.named_parameters():
            parameter -= 1e-3 * slope[name]
    fall = 1e-3 * sum(float((value**2).sum()) for value in slope.values())
    assert before - loss_after_the_step() == pytest.approx(fall, rel=0.05)


def test_nothing_that_was_given_changes() -> None:
    case = Case(0, 3)
    before = [value.clone() for value in case.everything()]
    feddure.labelled_loss(case.model, case.phi, case.buffers, case.x, case.y)
    weighted_step(case.model, case.phi, case.buffers, case.strong, case.labels, case.weights, 0.1)
    regulator_gradient(
        case.model, case.phi, case.buffers, case.regulator, case.strong, case.labels, case.x, case.y, 0.1
    )
    for old, new in zip(before, case.everything(), strict=True):
        assert new.tolist() == old.tolist()


def linear_phi() -> dict[str, Tensor]:
    """Two classes, whose logits are (0, 0) whatever the image: only the classifier's bias can move them."""
    return {
        "conv.weight": torch.ones(CHANNELS, 1, 3, 3).double(),
        "bn.weight": torch.zeros(CHANNELS).double(),
        "bn.bias": torch.zeros(CHANNELS).double(),
        "classifier.weight": torch.zeros(2, CHANNELS).double(),
        "classifier.bias": torch.zeros(2).double(),
    }


def test_literal_numbers_of_a_network_that_is_all_bias() -> None:
    case, phi = Case(0, 2), linear_phi()
    loss = feddure.labelled_loss(case.model, phi, case.buffers, case.x, case.y)
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)

    # probabilities 1/2: the bias has slope (1/2 - label) x weight; weights 1, 1/2 on class 0, 1/4 on class 1
    images, labels = case.strong[:3], torch.tensor([0, 0, 1])
    weights = torch.tensor([1.0, 0.5, 0.25]).double()
    after = weighted_step(case.model, phi, case.buffers, images, labels, weights, 1.2)
    # 1.2 / 3 x (1/2 + 1/4 - 1/8)
    assert after["classifier.bias"].tolist() == pytest.approx([0.25, -0.25], abs=1e-12)
    assert after["conv.weight"].tolist() == phi["conv.weight"].tolist()
    # ln(1 + exp(-1/2)) where class 0 is true
    x, y = case.x[:2], torch.tensor([0, 0])
    loss = feddure.labelled_loss(case.model, after, case.buffers, x, y)
    assert loss.item() == pytest.approx(0.474077, abs=1e-6)

    # a regulator that scores every image sigmoid(0) = 1/2 moves the bias by 1.2 / 3 x 1/4 = 0.1. There the
    # loss has slope -2 sigmoid(-0.2) = -0.900332; the bias has slope 1.2 / 3 x 1/2 x 1/4 = 0.05 by the
    # regulator's last bias (1/4 is the sigmoid's slope), and hidden unit times that by each last weight
    for parameter in case.regulator.parameters():
        parameter.data.zero_()
    case.regulator[0].bias.data = torch.tensor([1.0, 2.0, 3.0, 0.0]).double()
    found = regulator_gradient(case.model, phi, case.buffers, case.regulator, images, labels, x, y, 1.2)
    assert found["2.bias"].tolist() == pytest.approx([-0.045017], abs=1e-6)
    assert found["2.weight"].flatten().tolist() == pytest.approx(
        [-0.045017, -0.090033, -0.135050, 0.0], abs=1e-6
    )
    assert not found["0.weight"].any()
    assert not found["0.bias"].any()
