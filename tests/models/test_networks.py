"""The other built-in networks: published sizes, any image, features, and what takes batch norm's place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxyfl import models
from proxyfl.core.errors import ConfigError
from proxyfl.models import Network
from proxyfl.models.measure import measure


def parameters(name: str, classes: int = 10, channels: int = 3, size: int = 32) -> int:
    with torch.device("meta"):
        net = models.build(name, classes, channels, image_size=size)
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [("wrn-40-1", 0.6), ("wrn-40-2", 2.2), ("wrn-40-4", 8.9), ("wrn-28-10", 36.5), ("wrn-28-12", 52.5),
     ("wrn-22-8", 17.2), ("wrn-16-8", 11.0), ("wrn-40-8", 35.7)],
)  # fmt: skip
def test_wide_networks_have_the_size_that_their_paper_prints(name, millions):
    assert round(parameters(name) / 1e6, 1) == millions


def test_parameters_to_the_last_one():
    assert parameters("wrn-28-2") == 1_467_610
    assert parameters("wrn-16-1") == 175_066
    assert parameters("resnet18") == 11_173_962
    assert parameters("resnet18", 1000, size=224) == 11_689_512
    assert parameters("cnn", channels=1, size=28) == 1_663_370


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-2", "resnet18", "cnn"])
@pytest.mark.parametrize("size", [8, 33, 64])
def test_images_of_any_size_give_features_and_logits(name, size):
    with torch.random.fork_rng(devices=[]):
        net = models.build(name, 7, channels=1, heads=True, image_size=size).eval()
    x = torch.rand(2, 1, size, size)
    features = net.features(x)
    assert features.shape == (2, net.classifier.in_features)
    assert torch.equal(net(x), net.classifier(features))
    assert net(torch.rand(1, 1, 20, 24)).shape == (1, 7)


def test_large_images_get_the_large_stem():
    small, large = (models.build("resnet18", 2, image_size=size).trunk.stem.conv for size in (63, 64))
    assert (small.kernel_size, small.stride) == ((3, 3), (1, 1))
    assert (large.kernel_size, large.stride) == ((7, 7), (2, 2))


def test_a_wide_network_halves_the_image_twice_and_skips_where_it_can():
    net = models.build("wrn-16-2", 3)
    assert len(net.trunk.stage1) == 2
    assert [net.trunk[k][0].stride for k in (1, 2, 3)] == [1, 2, 2]
    assert [net.trunk[k][0].skip is None for k in (1, 2, 3)] == [False] * 3
    assert all(net.trunk[k][1].skip is None for k in (1, 2, 3))
    assert net.features(torch.rand(1, 3, 8, 8)).min() >= 0


@pytest.mark.parametrize("name", ["wrn-27-2", "wrn-4-2", "wrn-28-0"])
def test_a_wide_network_that_cannot_be(name):
    with pytest.raises(ConfigError, match=r"D is 6 n \+ 4"):
        models.require(name)


def test_names_of_families_are_found_again():
    assert models.name_of(models.require("wrn-16-1")) == "wrn-16-1"
    with pytest.raises(ConfigError, match="did you mean"):
        models.require("wrn-282")


def test_own_networks_may_ask_for_the_size_of_images():
    def mine(classes: int, image_size: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(image_size**2, classes))

    def any_keyword(**sizes: int) -> nn.Module:
        assert sorted(sizes) == ["channels", "classes", "width"]
        return nn.Linear(1, 1)

    assert Network.of(mine, 3, 1, image_size=9)()(torch.rand(2, 1, 9, 9)).shape == (2, 3)
    Network.of(any_keyword, 3, 1)()


def test_cost_of_a_network():
    """A convolution of 9 multiplications and as many additions for 2 × 4 × 4 outputs, and a linear map."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2))
            self.classifier = nn.Linear(2, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.trunk(x).mean((2, 3)))

    cost = measure(Network.of(Two, 5, 1, image_size=4))
    assert cost.parameters == 18 + 4 + 15
    assert cost.state == cost.parameters + 5
    assert cost.bytes == 4 * cost.parameters + 4 * 4 + 8
    assert [(layer.name, layer.shape, layer.parameters, layer.flops) for layer in cost.layers] == [
        ("trunk.0", (2, 4, 4), 18, 2 * 9 * 2 * 16),
        ("trunk.1", (2, 4, 4), 4, 0),
        ("classifier", (5,), 15, 2 * 10),
    ]
    assert cost.flops == 596


def test_cost_of_resnet18_at_the_size_it_was_published_for():
    assert round(measure(Network.of("resnet18", 1000, 3, image_size=224)).flops / 2e9, 1) == 1.8


class TestNorm:
    @pytest.mark.parametrize("name", ["resnet8", "wrn-10-1", "resnet18"])
    def test_group_norm_takes_every_place(self, name):
        net = Network.of(name, 3, 1, 1, norm="group")()
        groups = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
        batch = [m for m in Network.of(name, 3, 1, 1)().modules() if isinstance(m, nn.BatchNorm2d)]
        assert len(groups) == len(batch)
        assert not list(net.buffers())
        assert all(norm.num_groups == 8 for norm in groups)

    def test_initial_weights_are_the_same(self):
        states = []
        for norm in ("batch", "group"):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                states.append(Network.of("wrn-10-1", 3, 1, 1, norm=norm)().state_dict())
        assert states[1].keys() < states[0].keys()
        assert all(torch.equal(value, states[0][name]) for name, value in states[1].items())

    def test_channels_that_are_not_a_multiple_of_eight_get_fewer_groups(self):
        net = Network.of(nn.Sequential(nn.BatchNorm2d(6)), 3, 1, norm="group")()
        assert (net[0].num_groups, net[0].num_channels) == (2, 6)

    def test_a_network_without_batch_norm_is_told(self):
        with pytest.raises(ConfigError, match="'cnn' has no batch norm"):
            Network.of("cnn", 3, 1, norm="group")()
