"""Names of sites, and places below a deployment's folder: what is safe on every disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxyfl.core.errors import ConfigError

REMOVED = "removed"
RESERVED = frozenset({"app", "audit", "ca", "deploy", "keys", REMOVED, "run", "sample", "server", "state"})
"""Names of a deployment's own folders, which no site can have."""

_SITE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")


def check_sites(names: Sequence[str]) -> None:
    """Names that are safe as folders, none of them twice."""
    require_texts("sites", names)
    if not names:
        raise ConfigError("there are no sites; name one or more")
    for name in names:
        if not _SITE_NAME.fullmatch(name):
            raise ConfigError(
                f"site name '{name}' cannot be used; up to 63 small letters, digits, - and _ in between"
            )
        if name in RESERVED:
            raise ConfigError(f"site name '{name}' is the name of one of the deployment's own folders")


def known_site(name: str, sites: Sequence[str]) -> str:
    if name not in sites:
        raise ConfigError(f"there is no site '{name}'; sites: {', '.join(sites)}")
    return name


def inside(folder: Path, relative: str) -> Path:
    """A path below the folder, links followed; anything else is refused."""
    place = (folder / relative).resolve()
    if not place.is_relative_to(folder.resolve()) or place == folder.resolve():
        raise ConfigError(f"'{relative}' leads out of {folder}")
    return folder / relative


def require_texts(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ConfigError(f"{name} must be a list of names, not {value!r}")
        if list(values).count(value) > 1:
            raise ConfigError(f"{name} has '{value}' twice")
