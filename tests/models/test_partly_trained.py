"""Networks of which a part is trained: what is in their state, adapters, and copies that share the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxyfl.core.errors import ConfigError
from proxyfl.models import LoRA, Network, duplicate, fold_batchnorm, frozen_tensors
from proxyfl.models.lora import changed, merged


def built(name: str = "resnet8", heads: bool = False, **more) -> nn.Module:
    network = Network.of(name, 3, 1, 1, image_size=8, **more)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return network.adapt(network(heads))


IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))


class TestFreezing:
    def test_the_head_alone(self):
        net, whole = built(trainable="head", heads=True), built(heads=True)
        heads = [name for name in whole.state_dict() if name.startswith("heads.")]
        assert list(net.state_dict()) == ["classifier.weight", "classifier.bias", *heads]
        assert [name for name, _ in net.named_parameters()] == list(net.state_dict())
        frozen = dict(frozen_tensors(net))
        assert {*frozen, *net.state_dict()} == set(whole.state_dict())
        assert all(torch.equal(value, whole.state_dict()[name]) for name, value in frozen.items())

    def test_patterns(self):
        net = built(trainable="trunk.stage3.second.*, classifier.bias")
        assert sorted(net.state_dict()) == [
            "classifier.bias",
            "trunk.stage3.second.conv.weight",
            "trunk.stage3.second.norm.bias",
            "trunk.stage3.second.norm.num_batches_tracked",
            "trunk.stage3.second.norm.running_mean",
            "trunk.stage3.second.norm.running_var",
            "trunk.stage3.second.norm.weight",
        ]

    def test_frozen_batch_norm_keeps_its_statistics_and_uses_them(self):
        net, whole = built(trainable="head").train(), built().eval()
        assert torch.equal(net(IMAGES), whole(IMAGES))
        assert all(float(value.sum()) == 0 for name, value in frozen_tensors(net) if "running_mean" in name)
        partly = built(trainable="trunk.stage3.*,classifier.*").train()
        partly(IMAGES)
        means = {name: value for name, value in partly.state_dict().items() if "running_mean" in name}
        assert len(means) == 3
        assert all(bool(value.any()) for value in means.values())

    def test_gradients_reach_what_is_trained_and_nothing_else(self):
        net = built(trainable="trunk.stage2.*,classifier.*")
        net.requires_grad_(True)
        net(IMAGES).sum().backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        assert all(not value.requires_grad for _, value in frozen_tensors(net))

    def test_a_state_is_loaded_whole_or_refused(self):
        net = built(trainable="head")
        net.load_state_dict(built(trainable="head").state_dict())
        with pytest.raises(RuntimeError, match="Unexpected key"):
            net.load_state_dict(built().state_dict())

    def test_names_that_do_not_exist_are_told_with_those_that_do(self):
        with pytest.raises(ConfigError) as error:
            built(trainable="layers.3.*,classifier.*")
        assert "'layers.3.*' names no parameter of 'resnet8'" in str(error.value)
        assert "trunk.stem.conv.weight, " in str(error.value)
        assert " … (17 more) …, " in str(error.value)
        assert str(error.value).endswith("classifier.weight, classifier.bias")
        with pytest.raises(ConfigError, match=r"'head' .*'classifier\.\*'"):
            Network.of(nn.Linear(2, 2), 2, 1, trainable="head").adapt(nn.Linear(2, 2))

    def test_tied_weights_are_frozen_in_both_places(self):
        net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
        net[1].weight = net[0].weight
        Network.of(net, 2, 1, trainable="2.*").adapt(net)
        assert list(net.state_dict()) == ["2.weight", "2.bias"]
        assert net[0].weight is net[1].weight

    def test_copies_share_what_is_frozen(self):
        net = built(trainable="head")
        copied = duplicate(net)
        pairs = zip(frozen_tensors(net), frozen_tensors(copied), strict=True)
        assert all(ours is theirs for (_, ours), (_, theirs) in pairs)
        assert copied.classifier.weight is not net.classifier.weight


class TestAdapters:
    def test_the_change_of_a_weight(self):
        weight, first, second = (
            torch.ones(2, 3),
            torch.tensor([[1.0, 2.0, 3.0]]),
            torch.tensor([[1.0], [-1.0]]),
        )
        assert changed(weight, first, second, 0.5).tolist() == [[1.5, 2.0, 2.5], [0.5, 0.0, -0.5]]

    def test_nothing_changes_before_training(self):
        net, plain = built(lora=LoRA(2)).eval(), built().eval()
        assert torch.equal(net(IMAGES), plain(IMAGES))

    def test_what_is_trained(self):
        state = built(lora=LoRA(2, "trunk.stage3.*"), trainable="head").state_dict()
        layers = ("first.conv", "second.conv", "skip.conv")
        halves = [f"trunk.stage3.{layer}.{half}" for layer in layers for half in ("lora_a", "lora_b")]
        assert sorted(state) == sorted([*halves, "classifier.weight", "classifier.bias"])
        assert state["trunk.stage3.first.conv.lora_a"].shape == (2, 32 * 9)
        assert state["trunk.stage3.first.conv.lora_b"].shape == (64, 2)

    def test_all_trains_everything_but_weights_with_adapters(self):
        state, plain = built(lora=LoRA(1)).state_dict(), built().state_dict()
        gone = {name for name in plain if name.endswith("conv.weight")}
        assert plain.keys() - state.keys() == gone
        assert len(state) == len(plain) + len(gone)

    @pytest.mark.parametrize("autocast", [False, True])
    def test_merged_weights_compute_the_same(self, autocast):
        lora = LoRA(2, "*", alpha=3.0)
        net, plain = built(lora=lora).eval(), built().eval()
        for name, value in net.named_parameters():
            if name.endswith("lora_b"):
                value.data.normal_(generator=torch.Generator().manual_seed(2))
        plain.load_state_dict(merged(plain.state_dict(), net.state_dict(), lora.scale))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            assert torch.equal(net(IMAGES), plain(IMAGES))
        folded = fold_batchnorm(net)
        assert not any("lora" in name for name in folded.state_dict())
        torch.testing.assert_close(folded(IMAGES), plain(IMAGES), rtol=1e-4, atol=1e-4)

    def test_linear_layers_of_ones_own(self):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
        adapted = Network.of(net, 3, 1, lora=LoRA(1, "1"), trainable="3.*").adapt(net)
        assert list(adapted.state_dict()) == ["1.lora_a", "1.lora_b", "3.weight", "3.bias"]
        adapted(IMAGES).sum().backward()
        assert adapted[1].lora_b.grad.abs().sum() > 0

    def test_targets_that_do_not_exist(self):
        with pytest.raises(ConfigError, match=r"'x' .*'cnn' .*trunk.0, trunk.3, trunk.8"):
            built("cnn", lora=LoRA(1, "x"))
        with pytest.raises(ConfigError, match="'classifier' names no layer"):
            built(lora=LoRA(1, "classifier"))
