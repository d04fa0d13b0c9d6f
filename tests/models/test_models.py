"""Networks: sizes, shapes, names, initialisation, heads, a user's own, and folding batch norm."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from proxyfl import models
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.rng import isolated
from proxyfl.models import registry
from proxyfl.models.measure import listing, summary


class Tiny(nn.Module):
    """A linear network on the mean colour."""

    def __init__(self, classes: int, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(channels, 8 * width)
        self.classifier = nn.Linear(8 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x.mean((2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def no_features(classes: int, channels: int, width: int) -> nn.Module:
    net = nn.Sequential(nn.Flatten())
    net.classifier = nn.Linear(3, classes)
    return net


def no_classifier(classes: int, channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def other_arguments(classes: int, depth: int) -> nn.Module:
    return nn.Flatten()


def no_module(classes: int, channels: int, width: int) -> str:
    return "a network"


@pytest.fixture(autouse=True)
def untouched_registry(monkeypatch):
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))


@pytest.fixture
def misfits(untouched_registry):
    for factory in (no_features, no_classifier, other_arguments, no_module):
        models.register(factory.__name__)(factory)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


class TestResNet8:
    @pytest.mark.parametrize(
        ("classes", "heads", "expected"),
        [(10, False, 1_227_594), (100, False, 1_250_724), (10, True, 1_358_922), (100, True, 1_382_052)],
    )
    def test_parameter_counts(self, classes, heads, expected):
        assert parameters(models.build("resnet8", classes, heads=heads)) == expected

    def test_batch_norm(self):
        net = models.build("resnet8", 10)
        norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
        assert len(norms) == 9
        assert sum(b.numel() for b in net.buffers() if b.is_floating_point()) == 2688
        assert all((norm.momentum, norm.eps, norm.track_running_stats) == (0.1, 1e-5, True) for norm in norms)
        assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)

    @pytest.mark.parametrize("size", [8, 9, 28, 32, 33])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_any_size_from_eight_and_any_channels(self, size, channels):
        net = models.build("resnet8", 7, channels=channels, width=1)
        x = torch.rand(2, channels, size, size)
        assert net(x).shape == (2, 7)
        assert net.features(x).shape == (2, 64)

    @pytest.mark.parametrize("width", [1, 2, 3, 4])
    def test_width_widens_every_stage(self, width):
        net = models.build("resnet8", 10, width=width, heads=True)
        convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
        assert {conv.out_channels for conv in convolutions} == {16 * width, 32 * width, 64 * width}
        assert net.classifier.in_features == net.heads.feature.in_features == 64 * width

    def test_logits_are_the_classifier_on_features_that_are_not_negative(self):
        net = models.build("resnet8", 10, width=1).eval()
        x = torch.randn(4, 3, 16, 16)
        assert torch.equal(net(x), net.classifier(net.features(x)))
        assert (net.features(x) >= 0).all()

    def test_the_three_stages_halve_the_image_twice(self):
        net = models.build("resnet8", 10, width=1)
        sizes = []
        for stage in ("stem", "stage1", "stage2", "stage3"):
            getattr(net.trunk, stage).register_forward_hook(
                lambda _m, _i, out: sizes.append(tuple(out.shape))
            )
        net(torch.rand(1, 3, 32, 32))
        assert sizes == [(1, 16, 32, 32), (1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]

    def test_initial_values(self):
        with isolated(0, 0, 0, "weights"):
            net = models.build("resnet8", 100)
        for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
            assert conv.bias is None
            k = conv.kernel_size[0]
            expected = math.sqrt(2 / (k * k * conv.out_channels))
            assert conv.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert conv.weight.abs().max() > 2.5 * expected  # normal, not uniform
        assert net.classifier.weight.abs().max().item() == pytest.approx(1 / 16, rel=1e-2)

    def test_names_sort_into_trunk_classifier_and_heads(self):
        names = list(models.build("resnet8", 10, heads=True).state_dict())
        assert all(name.split(".")[0] == models.part_of(name) for name in names)
        parts = {"trunk": [], "classifier": [], "heads": []}
        for name in names:
            parts[models.part_of(name)].append(name)
        assert parts["classifier"] == ["classifier.weight", "classifier.bias"]
        assert parts["heads"] == ["heads.feature.weight", "heads.feature.bias", "heads.proxy.weight"]
        assert len(parts["trunk"]) == 9 + 9 * 5
        assert "trunk.stage2.skip.conv.weight" in parts["trunk"]


class TestHeads:
    def test_two_linear_maps(self):
        heads = models.ProjectionHeads(5)
        z, w = torch.randn(7, 5), torch.randn(3, 5)
        features, proxies = heads(z, w)
        assert torch.equal(features, heads.feature(z))
        assert torch.equal(proxies, w @ heads.proxy.weight.T)
        assert heads.proxy.bias is None
        assert heads.feature.bias is not None

    def test_they_do_not_take_part_in_predictions(self):
        net = models.build("resnet8", 4, width=1, heads=True).eval()
        x = torch.rand(2, 3, 8, 8)
        before = net(x)
        net.heads.requires_grad_(False).feature.weight.zero_()
        assert torch.equal(net(x), before)

    def test_a_users_network_carries_them(self):
        models.register("tiny")(Tiny)
        net = models.build("tiny", 10, width=2, heads=True)
        assert net.heads.proxy.weight.shape == (16, 16)

    @pytest.mark.parametrize(
        ("name", "message"),
        [("no_features", r"give it features\(x\)"), ("no_classifier", "give it classifier")],
    )
    @pytest.mark.usefixtures("misfits")
    def test_a_network_that_cannot_carry_them_is_named(self, name, message):
        models.build(name, 10)
        with pytest.raises(MethodError, match=message):
            models.build(name, 10, heads=True)

    def test_an_attribute_of_that_name_is_not_overwritten(self):
        with pytest.raises(MethodError, match="called heads"):
            models.attach_heads(models.build("resnet8", 10, width=1, heads=True), "resnet8")


class TestRegistry:
    def test_a_registered_factory_is_built_by_name(self):
        assert models.register("tiny")(Tiny) is Tiny
        net = models.build("tiny", 5, channels=1, width=3)
        assert isinstance(net, Tiny)
        assert net(torch.rand(2, 1, 8, 8)).shape == (2, 5)

    def test_registering_twice_is_harmless_but_not_something_else(self):
        models.register("tiny")(Tiny)
        models.register("tiny")(Tiny)
        with pytest.raises(ConfigError, match="registered already"):
            models.register("tiny")(no_features)

    def test_a_name_never_imports_code(self):
        with pytest.raises(ConfigError, match="unknown model"):
            models.build(f"{__name__}:Tiny", 5)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("resnet9", "did you mean 'resnet8'"),
            ("other_arguments", r"must accept \(classes, channels, width\)"),
            ("no_module", "a str"),
        ],
    )
    @pytest.mark.usefixtures("misfits")
    def test_names_that_lead_nowhere(self, name, message):
        with pytest.raises(ConfigError, match=message):
            models.build(name, 10)

    @pytest.mark.parametrize("setting", ["classes", "channels", "width"])
    def test_sizes_below_one(self, setting):
        with pytest.raises(ConfigError, match=f"{setting} = 0"):
            models.build("resnet8", **({"classes": 10} | {setting: 0}))

    @pytest.mark.parametrize("name", ["", "a:b"])
    def test_names_that_cannot_be_registered(self, name):
        with pytest.raises(ConfigError, match="cannot name a model"):
            models.register(name)

    def test_the_listing(self):
        models.register("tiny")(Tiny)
        state = torch.random.get_rng_state()
        models.register("refuses")(no_module)
        found = {name: (told, cost) for name, told, cost in listing(classes=10, channels=3)}
        assert torch.equal(torch.random.get_rng_state(), state)
        names = "adapter cnn linear mlp refuses resnet18 resnet8 tiny wrn-16-1 wrn-28-2"
        assert [name for name in found if name != "little"] == names.split()  # which other tests register
        assert found["resnet8"][1].parameters == 1_227_594
        assert found["tiny"][0] == "A linear network on the mean colour."
        assert found["refuses"][1] is None

    def test_a_network_without_a_docstring_says_nothing_and_not_what_it_inherits(self):
        models.register("silent")(type("Silent", (Tiny,), {}))
        assert summary("silent") == ""


def with_random_statistics(net: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for norm in (m for m in net.modules() if isinstance(m, nn.BatchNorm2d)):
        signed, positive = (norm.running_mean, norm.bias), (norm.running_var, norm.weight)
        for tensor, low in [(t, -0.5) for t in signed] + [(t, 0.5) for t in positive]:
            tensor.data.uniform_(low, low + 1, generator=generator)
    return net


class TestFolding:
    @pytest.mark.parametrize("width", [1, 4])
    def test_same_outputs_without_batch_norm(self, width):
        net = with_random_statistics(models.build("resnet8", 10, width=width))
        frozen = models.fold_batchnorm(copy.deepcopy(net))
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        net.eval()
        torch.testing.assert_close(frozen(x), net(x), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(frozen.features(x), net.features(x), rtol=1e-5, atol=1e-5)
        assert not any(isinstance(m, nn.BatchNorm2d) for m in frozen.modules())
        assert not frozen.training
        assert not any(p.requires_grad for p in frozen.parameters())

    def test_memory_format_survives(self):
        net = models.build("resnet8", 10, width=1).to(memory_format=torch.channels_last)
        weight = models.fold_batchnorm(net).trunk.stage2.second.conv.weight
        assert weight.is_contiguous(memory_format=torch.channels_last)

    def test_folding_twice(self):
        frozen = models.fold_batchnorm(with_random_statistics(models.build("resnet8", 10, width=1)))
        x = torch.randn(2, 3, 8, 8)
        once = frozen(x)
        assert torch.equal(models.fold_batchnorm(frozen)(x), once)

    def test_another_network_is_frozen_as_it_is(self):
        net = with_random_statistics(no_classifier(10, 3, 4))
        frozen = models.fold_batchnorm(copy.deepcopy(net))
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(frozen(x), net.eval()(x))
        assert isinstance(frozen[1], nn.BatchNorm2d)
        assert not any(p.requires_grad for p in frozen.parameters())
        assert not frozen.training
