"""FedDure's steps as functions of their own: what training does with one pass for both, done apart."""

from __future__ import annotations

from torch import Tensor, nn

from proxyfl.core.state import Tensors
from proxyfl.methods.feddure import Named, _judge, _leaves, _moved, _pass


def weighted_step(
    model: nn.Module, phi: Named, buffers: Named, images: Tensor, labels: Tensor, weights: Tensor, lr: float
) -> Tensors:
    """phi - lr * grad mean_i weights_i H(labels_i, p_phi(images_i)): steps (a) and (c)."""
    leaves = _leaves(phi)
    return _moved(leaves, _pass(model, leaves, buffers, images, labels)[0], weights, lr)


def regulator_gradient(
    model: nn.Module,
    phi: Named,
    buffers: Named,
    regulator: nn.Module,
    strong: Tensor,
    labels: Tensor,
    x: Tensor,
    y: Tensor,
    lr: float,
) -> Tensors:
    """The gradient of step (b), by the names of the regulator's parameters."""
    return _judge(model, _leaves(phi), buffers, regulator, lr, strong, labels, x, y)[0]
