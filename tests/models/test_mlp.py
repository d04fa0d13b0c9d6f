"""The networks for vectors: their layers, what they take, and settings that others refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxyfl.core.errors import ConfigError
from proxyfl.core.network import ModelSettings
from proxyfl.models import Network


def shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in net.state_dict().items() if name.endswith("weight")}


def built(name: str, channels: int, size: int, **settings: object) -> nn.Module:
    return Network.configured(ModelSettings(name=name, **settings), 3, channels, size)()  # type: ignore[arg-type]


def test_the_layers_of_an_mlp():
    assert shapes(built("mlp", 30, 0, width=2)) == {
        "trunk.hidden1.weight": (128, 30),
        "trunk.hidden2.weight": (128, 128),
        "classifier.weight": (3, 128),
    }
    own = built("mlp", 30, 0, hidden=(7,), dropout=0.5)
    assert shapes(own) == {"trunk.hidden1.weight": (7, 30), "classifier.weight": (3, 7)}
    x = torch.randn(4, 30)
    assert not torch.equal(own(x), own(x))
    own.eval()
    assert torch.equal(own(x), own.classifier(own.features(x)))
    assert torch.equal(own.features(x), (x @ own.trunk.hidden1.weight.T + own.trunk.hidden1.bias).relu())


def test_linear_is_one_layer_on_the_numbers_themselves():
    net = built("linear", 5, 0)
    x = torch.randn(2, 5)
    assert torch.equal(net.features(x), x)
    assert torch.equal(net(x), net.classifier(x))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_images_are_flattened(name):
    net = built(name, 3, 8)
    assert net(torch.randn(2, 3, 8, 8)).shape == (2, 3)
    assert built(name, 192, 0)(torch.randn(2, 192)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("resnet8", {"hidden": (5,)}, r"model 'resnet8' has no model\.hidden; leave it out, or choose mlp"),
        ("linear", {"dropout": 0.1}, r"model 'linear' has no model\.dropout"),
        ("mlp", {"hidden": (5, 0)}, r"model\.hidden = \[5, 0\] must be whole numbers from 1"),
        ("mlp", {"hidden": (2.5,)}, r"model\.hidden = \[2\.5\] must be whole numbers"),
    ],
)
def test_settings_of_other_networks_are_refused(name, settings, told):
    with pytest.raises(ConfigError, match=told):
        built(name, 3, 8, **settings)


def test_own_networks_keep_their_defaults_and_learn_the_number_of_inputs():
    class Mine(nn.Linear):
        def __init__(self, num_classes: int, in_features: int, dropout: float = 0.3) -> None:
            super().__init__(in_features, num_classes)
            self.given = dropout

    class Wide(nn.Linear):
        def __init__(self, classes: int, inputs: int = 64) -> None:
            super().__init__(inputs, classes)

    net = Network.of(Mine, 3, 7, image_size=0)()
    assert (net.in_features, net.given) == (7, 0.3)
    assert Network.of(Mine, 3, 7, image_size=0, dropout=0.1)().given == 0.1
    assert Network.of(Wide, 3, 1)().in_features == 64
