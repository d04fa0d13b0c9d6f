"""FedLabel (Cho et al., ICCV 2023): the better expert of local and global model names each label.

Neither model is better everywhere, so the one that is surer about an image labels it. Where both agree on
the class, the local prediction on the strong view is also drawn to the global one, which costs no extra
communication::

    expert_i = global if score(pG_i) >= score(pL_i) else local;   yhat_i = lab(expert)
    mask_i   = [max(conf(pL_i), conf(pG_i)) >= tau]
    Lpl  = mean_i mask_i H(yhat_i, pS_i)
    Lcon = mean_i [lab(pL_i) = lab(pG_i)] KL(pG(view(u_i)) || pS_i)
    loss = Ls + Lpl + consistency * Lcon

Deviations: no code of the method is public and the definition here follows its abstract; the score, the view
of the consistency term and whether that term is masked by confidence are therefore parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.methods.context import ClientContext, Outputs, Pseudo
from proxyfl.methods.fixmatch import FixMatch, PseudoLabelParameters
from proxyfl.methods.losses import masked_divergence
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class FedLabelParameters(PseudoLabelParameters):
    """Parameters of FedLabel."""

    score: str = setting(
        "confidence",
        "measure of expertise: largest probability, negative entropy, or variance",
        choices=("confidence", "entropy", "variance"),
    )
    consistency: float = setting(1.0, "weight of the consistency term (lambda)", low=0)
    view: str = setting(
        "strong", "view on which the global model is consulted for consistency", choices=("strong", "weak")
    )
    mask_consistency: bool = setting(False, "apply the confidence mask to the consistency term as well")


class FedLabel(FixMatch):
    name = "fedlabel"
    Parameters = FedLabelParameters

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        scores = expert(outputs.local_weak, outputs.global_weak, self.parameters.score)
        mask = self.confident(torch.maximum(outputs.local_weak, outputs.global_weak))
        return Pseudo(scores.argmax(1), mask, scores=scores)

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        if outputs.pseudo is None:
            return {}
        agree = outputs.local_weak.argmax(1) == outputs.global_weak.argmax(1)
        if self.parameters.mask_consistency:
            agree = agree & outputs.pseudo.mask
        strong = self.parameters.view == "strong"
        teacher = ctx.teacher(outputs.batch.u_strong) if strong else outputs.global_weak
        consistency = masked_divergence(outputs.strong, teacher, agree)
        return {
            "unlabelled": self.parameters.weight * self.unlabelled_loss(outputs.strong, outputs.pseudo),
            "consistency": self.parameters.consistency * consistency,
        }


def expert(local: Tensor, teacher: Tensor, score: str = "confidence") -> Tensor:
    """The rows of whichever model scores higher; the global one at a tie."""
    better = _score(teacher, score) >= _score(local, score)
    return torch.where(better.unsqueeze(1), teacher, local)


def _score(probabilities: Tensor, score: str) -> Tensor:
    if score == "confidence":
        return probabilities.amax(1)
    if score == "entropy":
        return -torch.sum(torch.special.entr(probabilities), 1)
    return probabilities.var(1, correction=0)


register(
    Recipe(
        "fedlabel",
        "the more confident of local and global model gives the label, both stay consistent",
        FedLabel,
    ),
    Shown("federated SSL", 31, "green", "dashed", ">"),
)
