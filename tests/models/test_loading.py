"""Weights put into a network: torch's own loading, to the bit and to the last complaint."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from proxyfl.core.state import Tensors
from proxyfl.models.loading import put
from proxyfl.models.resnet import ResNet


def drawn(network: nn.Module) -> Tensors:
    return {
        name: torch.rand_like(value) if value.is_floating_point() else value + 3
        for name, value in network.state_dict().items()
    }


def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes each time that torch's own loading is asked."""
    asked: list[int] = []
    usual = nn.Module.load_state_dict

    def counted(self: nn.Module, *given: object) -> object:
        asked.append(1)
        return usual(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(nn.Module, "load_state_dict", counted)
    return asked


def test_all_tensors_arrive_in_the_networks_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    network = ResNet(10, 3, 1).to(memory_format=torch.channels_last)
    weights, asked = drawn(network), walks(monkeypatch)
    before = {name: value.data_ptr() for name, value in network.state_dict().items()}
    put(network, weights)
    assert not asked
    for name, value in network.state_dict().items():
        assert torch.equal(value, weights[name])
        assert value.data_ptr() == before[name]
    assert network(torch.rand(2, 3, 8, 8)).requires_grad


def test_what_does_not_fit_is_told_by_torch() -> None:
    network = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        put(network, {"weight": torch.zeros(3, 3), "bias": torch.zeros(2)})
    with pytest.raises(RuntimeError, match="Missing key"):
        put(network, {"weight": torch.zeros(2, 3)})


class Doubled(nn.Linear):
    """Has its own way of being loaded."""

    def _load_from_state_dict(self, state: Tensors, prefix: str, *others: object) -> None:
        twice: dict[str, Tensor] = {name: 2 * value for name, value in state.items()}
        super()._load_from_state_dict(twice, prefix, *others)  # type: ignore[arg-type]


def test_a_module_that_loads_in_its_own_way_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    network, asked = nn.Sequential(Doubled(1, 1)), walks(monkeypatch)
    put(network, {"0.weight": torch.ones(1, 1), "0.bias": torch.ones(1)})
    assert asked
    assert [float(value) for value in network.state_dict().values()] == [2.0, 2.0]
    hooked = nn.Linear(1, 1)
    hooked.register_load_state_dict_pre_hook(lambda module, state, *_: state.update(bias=torch.zeros(1)))
    put(hooked, {"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    assert hooked.bias.item() == 0.0
