"""Methods: one paper, one file. Importing this package registers them all."""

from proxyfl.methods import (
    addons,
    corrected,
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
    "corrected",
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
