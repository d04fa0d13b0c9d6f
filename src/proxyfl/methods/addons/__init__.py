"""What can be attached to any method, and the pure functions at the heart of ProxyFL."""

from proxyfl.methods.addons.gpt import GPT, tune_proxies
from proxyfl.methods.addons.icpl import ICPL, icpl_loss
from proxyfl.methods.addons.prior import Prior, update_prior
from proxyfl.methods.addons.proto import Proto, prototype_loss
from proxyfl.methods.addons.prox import Prox, proximal

__all__ = [
    "GPT",
    "ICPL",
    "Prior",
    "Proto",
    "Prox",
    "icpl_loss",
    "prototype_loss",
    "proximal",
    "tune_proxies",
    "update_prior",
]
