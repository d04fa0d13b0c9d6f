"""What can be attached to any method. The pure functions at the heart of ProxyFL are exported here."""

from proxyfl.methods.addons.gpt import tune_proxies
from proxyfl.methods.addons.icpl import icpl_loss
from proxyfl.methods.addons.prior import update_prior
from proxyfl.methods.addons.proto import prototype_loss
from proxyfl.methods.addons.prox import proximal

__all__ = ["icpl_loss", "prototype_loss", "proximal", "tune_proxies", "update_prior"]
