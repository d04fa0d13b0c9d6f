"""Files of settings, read and written: presets, a person's own, and the config that a run keeps."""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from proxyfl.core.config import Config, read_config
from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.settings import known_fidelity
from proxyfl.core.trees import DEEPEST, Tree

MAX_BYTES = 1 << 18
MOST_DOTS = 200
"""In a line. The time that the parser takes grows with the square of the parts of a key."""


def preset_names() -> list[str]:
    return [*_preset_texts()]


@cache
def _preset_texts() -> dict[str, str]:
    """The files of all presets, by name: a table of the paper asks for them a thousand times."""
    files = [file for file in resources.files("proxyfl.presets").iterdir() if file.name.endswith(".toml")]
    return {
        file.name.removesuffix(".toml"): file.read_text(encoding="utf-8")
        for file in sorted(files, key=lambda file: file.name)
    }


def load_preset(name: str) -> Tree:
    """A data set's protocol. Its method table holds suggestions for whichever method is chosen."""
    if name not in preset_names():
        from proxyfl.data.sources import meant  # of no use to whoever reads files of settings

        raise ConfigError(f"unknown preset '{name}'; {meant(name) or nearest(name, preset_names())}")
    return tomllib.loads(_preset_texts()[name])


def preset(name: str) -> Config:
    """A preset with every value but the method's parameters, read without the code that it names."""
    return read_config({**load_preset(name), "preset": name}, "clean")


def load_toml(path: Path, if_missing: str = "") -> Tree:
    """The tables of a file, which may be untrusted: it is neither long nor deep. ``if_missing`` is what to
    do where there is none; otherwise presets are named.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is not a settings file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path} is longer than any settings file ({MAX_BYTES // 1024} kB)")
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in content:
            raise ConfigError(f"{path} cannot be read: it looks like UTF-16; save it as UTF-8")
        text = content.decode("utf-8-sig")
        if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
            raise ConfigError(f"{path} has a line with more than {MOST_DOTS} dots; no setting is so deep")
        tree = tomllib.loads(text)
        _require_shallow(tree, str(path))
        return tree
    except FileNotFoundError:
        cure = if_missing or f"known presets: {', '.join(preset_names())}"
        raise ConfigError(f"{path} does not exist; {cure}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets in brackets
        raise ConfigError(f"{path} is not TOML: {error}") from None


def _require_shallow(tree: Mapping[str, Any], what: str) -> None:
    """Refuse tables and lists that lie so deep inside each other that walking through them would fail."""
    level: list[Any] = [tree]
    for _ in range(DEEPEST):
        inner = [list(part.values()) if isinstance(part, Mapping) else part for part in level]
        level = [value for part in inner for value in part if isinstance(value, Mapping | list)]
        if not level:
            return
    raise ConfigError(f"{what} has tables more than {DEEPEST} levels deep; settings have at most four")


def recorded(path: Path) -> Config:
    """The config that a run wrote, every value explicit: it can be read without the code that it names."""
    table = load_toml(path)
    return read_config(table, known_fidelity(text_at(table, "fidelity", "clean")))


def to_toml(config: Config, first_line: str = "") -> str:
    """The config as TOML that :func:`resolve` reads back to the same config."""
    header = f"# {first_line}\n" if first_line else ""
    return header + tomli_w.dumps(config.to_tree())


def text_at(tree: Mapping[str, Any], key: str, default: str) -> str:
    value = tree.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"{key} must be text, not {value!r}")
    return value
