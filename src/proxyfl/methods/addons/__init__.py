"""What can be attached to any method, and the pure functions at the heart of ProxyFL."""

from proxyfl.methods.addons.freematch import FreeMatch, fairness_loss
from proxyfl.methods.addons.gpt import GPT, tune_proxies
from proxyfl.methods.addons.icpl import ICPL, icpl_loss
from proxyfl.methods.addons.prior import Prior, update_prior
from proxyfl.methods.addons.proto import Proto, prototype_loss
from proxyfl.methods.addons.prox import Prox, proximal
from proxyfl.methods.addons.softmatch import SoftMatch, soft_weight

__all__ = [
    "GPT",
    "ICPL",
    "FreeMatch",
    "Prior",
    "Proto",
    "Prox",
    "SoftMatch",
    "fairness_loss",
    "icpl_loss",
    "prototype_loss",
    "proximal",
    "soft_weight",
    "tune_proxies",
    "update_prior",
]
