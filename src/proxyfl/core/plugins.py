"""User code that is imported because the command line says so; a config file can never ask for it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from proxyfl.core.errors import ConfigError, ProxyFLError

VARIABLE = "PROXYFL_PLUGINS"

FILE_PREFIX = "proxyfl_plugin_"
"""How the module names of plug-ins that are files begin."""

loaded: list[str] = []
"""What was imported so, as worker processes need it: module names and whole paths."""


def load_plugins(named: Sequence[str]) -> None:
    """Import every plug-in of the environment, then those that were named, each once."""
    inherited = os.environ.get(VARIABLE, "").split(os.pathsep)
    for plugin in [*inherited, *named]:
        if plugin:
            load_plugin(plugin)


def load_plugin(name: str) -> None:
    """Import a module by name, or a file that ends in .py; what it registers is known afterwards."""
    if name.endswith(".py"):
        path = Path(name).expanduser()
        _load_file(path)
        _remember(str(path.absolute()))
        return
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"'{name}' does not name a module; give MODULE or FILE.py")
    try:
        importlib.import_module(name)
        _remember(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _in_words(name, error) from error
        raise ConfigError(f"plug-in '{name}' is not installed; to name a file, include its .py") from error
    except Exception as error:  # whatever code of the user raises
        raise _in_words(name, error) from error


def _in_words(plugin: str, error: Exception) -> ConfigError:
    """What a plug-in could not do, with the file and line to look at."""
    if isinstance(error, SyntaxError):
        return ConfigError(f"plug-in {error.filename or plugin}, line {error.lineno}: {error.msg}")
    frames = traceback.extract_tb(error.__traceback__)
    known = [frame for frame in frames if not frame.filename.startswith("<") and frame.filename != __file__]
    own = [frame for frame in known if frame.filename == plugin] or known
    place = f"{own[-1].filename}, line {own[-1].lineno}" if own else plugin
    cure = ""
    if isinstance(error, ModuleNotFoundError):
        cure = f"; install '{error.name}', or name its folder in PYTHONPATH if it is a file of yours"
    kind = "" if isinstance(error, ProxyFLError) else f"{type(error).__name__}: "
    return ConfigError(f"plug-in {place}: {kind}{error}{cure}")


def _remember(name: str) -> None:
    if name not in loaded:
        loaded.append(name)


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"plug-in {path} does not exist")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    name = f"{FILE_PREFIX}{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"plug-in {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise _in_words(str(path.absolute()), error) from error
        raise
