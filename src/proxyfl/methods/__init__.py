"""Methods: one paper, one file. Importing this package registers them all."""

from proxyfl.methods import (
    addons,
    fedavg,
    feddb,
    feddure,
    fedlabel,
    fedloke,
    fedmatch,
    fixmatch,
    flexmatch,
    proxyfl,
    sage,
)
from proxyfl.methods.registry import create, find, recipes, register, resolve

__all__ = [
    "addons",
    "create",
    "fedavg",
    "feddb",
    "feddure",
    "fedlabel",
    "fedloke",
    "fedmatch",
    "find",
    "fixmatch",
    "flexmatch",
    "proxyfl",
    "recipes",
    "register",
    "resolve",
    "sage",
]
