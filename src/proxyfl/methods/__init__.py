"""Methods: one paper, one file. Importing this package registers what its files register."""

import importlib
import pkgutil

from proxyfl.methods.registry import create, find, recipes, register, resolve

for _module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["create", "find", "recipes", "register", "resolve"]
