"""SAGE (Liu et al., CVPR 2025): local and global pseudo-labels mixed by how far their confidences are apart.

Where local and global model are about equally sure, the local label is trusted, since it knows the client's
data; the further apart their confidences, the more the global label counts. The mixture halves at a
discrepancy of ``half`` ::

    Delta_i  = clip(|conf(pL_i) - conf(pG_i)| + 1e-6, 1e-6, 1)
    lam_i    = clip(exp(-kappa Delta_i), 1e-6, 1),   kappa = ln 2 / half
    target_i = lam_i e_lab(pL_i) + (1 - lam_i) e_lab(pG_i)   if conf(pL_i) >= tau,   else e_lab(pG_i)
    mask_i   = [conf(pL_i) >= tau or conf(pG_i) >= tau]
    Lu       = mean_i mask_i KL(target_i + s || pS_i + s),  s = 1e-10

Deviations: none known from the released program. Its option ``kappa = 0.5`` is never read there; the two
ablations it lists are ``mixing = 0.5`` and ``decay = 2``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.fixmatch import FixMatch, PseudoLabelParameters
from proxyfl.methods.losses import masked_divergence
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class SAGEParameters(PseudoLabelParameters):
    """Parameters of SAGE."""

    half: float = setting(0.05, "confidence discrepancy at which both labels count the same", low=1e-6)
    decay: float = setting(0.0, "decay constant kappa; 0 derives it from half", low=0)
    mixing: float = setting(
        0.0, "fixed share of the local label instead of the decay; 0: none", low=0, high=1
    )

    @property
    def kappa(self) -> float:
        return self.decay or math.log(2) / self.half


class SAGE(FixMatch):
    name = "sage"
    Parameters = SAGEParameters

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        local, teacher = outputs.local_weak, outputs.global_weak
        share = local_share(local, teacher, self.parameters.kappa)
        if self.parameters.mixing:
            share = torch.full_like(share, self.parameters.mixing)
        sure = self.confident(local)
        share = share * sure
        target = mixed_target(local, teacher, share)
        scores = torch.lerp(teacher, local, share[:, None])
        return Pseudo(target.argmax(1), sure | self.confident(teacher), target, scores=scores)

    def unlabelled_loss(self, strong: Tensor, pseudo: Pseudo) -> Tensor:
        assert pseudo.target is not None
        return masked_divergence(strong, pseudo.target, pseudo.trust, self.parameters.over)


def local_share(local: Tensor, teacher: Tensor, kappa: float) -> Tensor:
    """lam: how much the local label counts, from the discrepancy of the two confidences."""
    discrepancy = ((local.amax(1) - teacher.amax(1)).abs() + 1e-6).clamp(1e-6, 1)
    return torch.exp(-kappa * discrepancy).clamp(1e-6, 1)


def mixed_target(local: Tensor, teacher: Tensor, share: Tensor) -> Tensor:
    """``share`` of the local one-hot label, the rest of the global one."""
    classes = local.shape[1]
    own, other = F.one_hot(local.argmax(1), classes), F.one_hot(teacher.argmax(1), classes)
    return torch.lerp(other.to(local.dtype), own.to(local.dtype), share[:, None])


register(
    Recipe("sage", "local and global labels mixed by the gap between their confidences", SAGE),
    Shown("federated SSL", 30, "green", "solid", "h"),
)
