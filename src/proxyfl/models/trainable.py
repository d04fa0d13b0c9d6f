"""Networks of which a part is trained. What is frozen is no parameter any more and not in the state: so it
does not travel, is not averaged, tuned or written to checkpoints, and nothing else has to know.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from proxyfl.core.errors import ConfigError
from proxyfl.core.text import listed
from proxyfl.models.lora import is_adapted, is_adapter, split

ALL, HEAD = "all", "head"


def freeze(net: nn.Module, trainable: str, name: str) -> nn.Module:
    """``net`` with all but what ``trainable`` names frozen, in place; ``name`` is for the error message.

    Frozen parameters become buffers outside the state, and so do the buffers of layers without a trained
    parameter: batch norm among them keeps the statistics it has. Adapters and projection heads are trained
    in any case, the weights that have adapters in none.
    """
    patterns = {ALL: ["*"], HEAD: ["classifier.*"]}.get(trainable) or split(trainable)
    _require_matches(net, patterns, trainable, name)
    trained = {
        id(value) for full, value in net.named_parameters(remove_duplicate=False) if _chosen(full, patterns)
    }
    trained -= {id(module.get_parameter("weight")) for module in net.modules() if is_adapted(module)}
    outside: dict[int, Tensor] = {}
    for place, module in net.named_modules():
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        frozen = [key for key, value in own.items() if id(value) not in trained]
        for key in frozen:
            delattr(module, key)
            value = outside.setdefault(id(own[key]), own[key].detach())
            module.register_buffer(key, value, persistent=False)
        buffers = [key for key, _ in module.named_buffers(recurse=False) if key not in frozen]
        still = len(frozen) == len(own)
        if still and not own:
            still = not any(_chosen(f"{place}.{key}".lstrip("."), patterns) for key in buffers)
        if still:
            for key in buffers:
                module.register_buffer(key, module.get_buffer(key), persistent=False)
            if isinstance(module, _NormBase):
                module.track_running_stats = False  # else loading a state asks for a counter
                module.register_forward_pre_hook(_stay)
        module.frozen = (*frozen, *(buffers if still else ()))
    return net


def frozen_tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What :func:`freeze` took out of the state, by the names it had there."""
    for place, module in net.named_modules():
        buffers = dict(module.named_buffers(recurse=False))
        for key in vars(module).get("frozen", ()):
            if key in buffers:  # what was merged or folded since is none any more
                yield f"{place}.{key}" if place else key, buffers[key]


def duplicate(net: nn.Module) -> nn.Module:
    """A copy with parameters and buffers of its own; frozen tensors are there once for all copies."""
    return copy.deepcopy(net, {id(value): value for _, value in frozen_tensors(net)})


def _stay(module: nn.Module, inputs: Any) -> None:
    """Frozen batch norm computes with its statistics, whatever mode the network is in."""
    module.training = False


def _chosen(full: str, patterns: list[str]) -> bool:
    if full.startswith("heads.") or is_adapter(full):
        return True
    return any(fnmatchcase(full, pattern) for pattern in patterns)


def _require_matches(net: nn.Module, patterns: list[str], trainable: str, name: str) -> None:
    own = [full for full, _ in net.named_parameters() if not full.startswith("heads.")]
    for pattern in patterns or [trainable]:
        if not any(fnmatchcase(full, pattern) for full in own):
            meant = f"'{HEAD}' stands for '{pattern}', which" if trainable == HEAD else f"'{pattern}'"
            raise ConfigError(
                f"model.trainable: {meant} names no parameter of '{name}'; it has {listed(own)}"
            )
