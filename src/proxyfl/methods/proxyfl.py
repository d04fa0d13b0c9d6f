"""ProxyFL (Chen and Wang, CVPR 2026): classifier rows as class proxies, for server and clients.

A client learns from confident images as FixMatch does, with the global model as teacher, and from *all*
images through ICPL: each is pulled to the proxies of the categories it may belong to and pushed from images
that share none of them. The server tunes the averaged proxies against the clients' own, outliers included
(GPT), and follows the class prior that decides which categories are in doubt::

    hc_i = [conf(pL_i) >= tau or conf(pG_i) >= tau]
    Lu   = mean_i hc_i KL(e_lab(pG_i) + s || pS_i + s),  s = 1e-10
    loss = Ls + weight * Lu + icpl.weight * Licpl           (addons/icpl.py, addons/prior.py)
    W_G <- tune(mean_k W_k ; all W_k)                       (addons/gpt.py)

Deviations: where the printed paper and the released program differ, the default is the program without its
accidents (momentum leaks from client to client, test images are normalised unlike training ones). ``fidelity
= "paper"`` takes the printed text: only the global model's confidence counts, strictly above tau, and Lu is
divided by the confident images. The printed KL has its arguments exchanged, which is infinite for one-hot
labels; every reading uses KL(label || prediction).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from proxyfl.core.settings import setting
from proxyfl.methods.addons import GPT, ICPL
from proxyfl.methods.context import Pseudo
from proxyfl.methods.fixmatch import FixMatch, FixMatchParameters
from proxyfl.methods.losses import masked_divergence
from proxyfl.methods.registry import Recipe, Shown, register


@dataclass(frozen=True)
class ProxyFLParameters(FixMatchParameters):
    """Parameters of ProxyFL's share of the client loss; ICPL, prior and GPT have tables of their own."""

    teacher: str = setting(
        "global", "model that gives the pseudo-label: local or global", choices=("local", "global")
    )
    mask: str = setting(
        "either",
        "whose confidence selects an image",
        choices=("local", "global", "either", "all"),
        paper="global",
    )
    strict: bool = setting(False, "confidence must exceed tau (true) or reach it (false)", paper=True)
    over: str = setting(
        "batch",
        "divide the unlabelled loss by all images of the batch, or by the selected ones",
        choices=("batch", "selected"),
        paper="selected",
    )


class ProxyFL(FixMatch):
    name = "proxyfl"
    Parameters = ProxyFLParameters
    usual_addons = (ICPL, GPT)

    def unlabelled_loss(self, strong: Tensor, pseudo: Pseudo) -> Tensor:
        target = F.one_hot(pseudo.label, strong.shape[1]).to(strong.dtype)
        return masked_divergence(strong, target, pseudo.trust, self.parameters.over)


register(
    Recipe("proxyfl", "ICPL on clients, proxy tuning on the server", ProxyFL, ("icpl", "gpt")),
    Shown("ProxyFL and parts", 50, "vermillion", "solid", "*", bold=True),
    aliases=["fixmatch+proxyfl"],
)
_TOP1, _TOP5 = {"icpl": {"sets": "top1"}}, {"icpl": {"sets": "top5"}}
register(
    Recipe("gpt-only", "ProxyFL without ICPL", ProxyFL, ("gpt",)),
    Shown("ProxyFL and parts", 51, "vermillion", "dashed", "s", page="proxyfl"),
)
register(
    Recipe("icpl-only", "ProxyFL without proxy tuning", ProxyFL, ("icpl",)),
    Shown("ProxyFL and parts", 52, "vermillion", "dash-dot", "D", page="proxyfl"),
    aliases=["icpl-prior"],
)
register(
    Recipe("icpl-top1", "ICPL with the most likely category only", ProxyFL, ("icpl",), defaults=_TOP1),
    Shown("ProxyFL and parts", 53, "vermillion", "dotted", "^", page="proxyfl"),
)
register(
    Recipe("icpl-top5", "ICPL with the five most likely categories", ProxyFL, ("icpl",), defaults=_TOP5),
    Shown("ProxyFL and parts", 54, "vermillion", "dash-dot-dot", "<", page="proxyfl"),
)
register(
    Recipe(
        "icpl-uniform", "ICPL with a uniform prior", ProxyFL, ("icpl",), defaults={"prior": {"fixed": True}}
    ),
    Shown("ProxyFL and parts", 55, "vermillion", "long-dash", ">", page="proxyfl"),
)
