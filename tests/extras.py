"""Packages of extras: found when tests are collected, imported by the process that runs a test with them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest


class Extra:
    """A package that is imported when something of it is used: every process collects all tests."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def extra(name: str, cure: str = "") -> Any:
    """The package or a module of it; without it the tests of the module that asks are skipped."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed{cure}", allow_module_level=True)
    return Extra(name)
