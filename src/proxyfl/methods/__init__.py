"""Methods: one paper, one file. Importing this package registers them all."""

from proxyfl.methods import addons, fedavg, fixmatch, proxyfl
from proxyfl.methods.registry import create, find, recipes, register, resolve

__all__ = ["addons", "create", "fedavg", "find", "fixmatch", "proxyfl", "recipes", "register", "resolve"]
