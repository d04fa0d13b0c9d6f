"""Methods: one paper, one file. Importing this package registers what its files register.

Their classes are here by name: ``from proxyfl.methods import ProxyFL``.
"""

import importlib
import pkgutil
from typing import Any

from proxyfl.methods.base import Addon, Method, MethodParameters
from proxyfl.methods.registry import create, find, recipes, register, resolve

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["Addon", "Method", "MethodParameters", "create", "find", "recipes", "register", "resolve"]


def __getattr__(name: str) -> Any:
    """The class of a registered method."""
    for recipe in recipes():
        if recipe.method.__name__ == name:
            return recipe.method
    raise AttributeError(f"module 'proxyfl.methods' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *(recipe.method.__name__ for recipe in recipes())})
