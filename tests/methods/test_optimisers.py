"""The SGD of local training: torch's to the bit, without importing the compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from proxyfl.methods.optimisers import SGD

KINDS = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 5e-4},
    {"lr": 0.03, "momentum": 0.9},
    {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4},
    {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": True},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_it_is_torchs_to_the_bit(options):
    """Tensors without a gradient stay, one that gets its first gradient late starts late."""
    draw = torch.Generator().manual_seed(1)
    starts = [torch.randn(shape, generator=draw) for shape in ((3, 4), (5,), (2, 2, 3, 3), ())]
    ours, theirs = ([start.clone().requires_grad_() for start in starts] for _ in range(2))
    pair = SGD(ours, **options), torch.optim.SGD(theirs, **options, foreach=False)
    for step in range(4):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            grad = torch.randn(one.shape, generator=draw) if step or place != 1 else None
            one.grad, other.grad = grad, None if grad is None else grad.clone()
        for optimiser in pair:
            optimiser.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)
    first, second = (optimiser.state_dict()["state"] for optimiser in pair)
    assert first.keys() == second.keys()
    for place, state in first.items():
        if state.get("momentum_buffer") is not None:
            assert torch.equal(state["momentum_buffer"], second[place]["momentum_buffer"])
    pair[0].zero_grad()
    assert all(parameter.grad is None for parameter in ours)


def test_a_closure_and_hooks_are_called():
    weight = torch.ones(1, requires_grad=True)
    optimiser = SGD([weight], lr=0.5)
    called = []
    optimiser.register_step_pre_hook(lambda *_: called.append("before"))

    def closure():
        optimiser.zero_grad()
        loss = (3 * weight).sum()
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 3
    assert (weight.item(), called) == (-0.5, ["before"])


@pytest.mark.slow
def test_training_does_not_import_the_compiler():
    """Its import takes longer than a small run's first round."""
    code = """
import sys
import proxyfl
from proxyfl.testing.toy import toy_dataset
data = toy_dataset()
split = proxyfl.partition(data, clients=2, per_class=2)
proxyfl.Federation(data, split, method="proxyfl", rounds=1, per_round=2, workers=0).run()
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
