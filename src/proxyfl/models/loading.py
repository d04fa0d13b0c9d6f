"""Weights that are put into the same network again and again."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from proxyfl.core.state import Tensors

_LOADS = {nn.Module._load_from_state_dict, _NormBase._load_from_state_dict}
"""What loads a module by copying its tensors and nothing else."""


@torch.no_grad()
def put(network: nn.Module, weights: Tensors) -> None:
    """``network.load_state_dict(weights)``, but copied at once where nothing else is to be done: with small
    clients, torch's walk through all modules takes longer than the copies.
    """
    own = network.state_dict()
    fits = own.keys() == weights.keys() and all(own[name].shape == weights[name].shape for name in own)
    if fits and _only_copies(network, own):
        torch._foreach_copy_([*own.values()], [weights[name] for name in own])
    else:
        network.load_state_dict(weights)  # which says what does not fit


def _only_copies(network: nn.Module, own: Tensors) -> bool:
    """Whether the state holds the network's own tensors and no module has its own way of loading them."""
    if type(network).load_state_dict is not nn.Module.load_state_dict:
        return False
    return all(isinstance(value, Tensor) for value in own.values()) and not any(
        module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
        or module._state_dict_hooks
        or type(module)._load_from_state_dict not in _LOADS
        or type(module)._save_to_state_dict is not nn.Module._save_to_state_dict
        for module in network.modules()
    )
