"""Who the connected nodes are: by their registered keys, or without authentication by what they claim."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from flwr.serverapp import Grid

from proxyfl.core.errors import ConfigError
from proxyfl.deploy.settings import Deployment, Site

LOOK = 1.0
"""Seconds for which keys are not read again."""

NOTES = "registered"
"""Folder below the deployment's state: which key of each site the SuperLink's database has."""


def _key_bytes(key: PublicKeyTypes) -> bytes:
    """A public key in the one form in which two equal keys are equal bytes."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)


def node_key(pem: bytes) -> bytes:
    """A node's key as Flower keeps it; empty where it is none."""
    try:
        return _key_bytes(serialization.load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm):
        return b""


def site_key(file: Path) -> bytes:
    try:
        return _key_bytes(serialization.load_ssh_public_key(file.read_bytes()))
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is not a public key ({error}); it must stay at the server") from None


class SiteRoster:
    """Nodes and sites of one federation.

    With authentication a node is the site whose key it has proved to hold, whatever it says. Without, it is
    the first that claims the name, until it is gone.
    """

    def __init__(self, grid: Grid, deployment: Deployment) -> None:
        self.grid, self.sites, self.insecure = grid, deployment.sites, deployment.insecure
        self.deployment = deployment
        self.keys = {} if deployment.insecure else site_keys(deployment)
        self.until = time.monotonic() + LOOK
        self.claims: dict[int, int] = {}
        self.refused: set[int] = set()
        self.second: dict[int, int] = {}

    def name(self, client: int) -> str:
        return self.sites[client]

    def removed(self, client: int) -> bool:
        """Whether the operator took it out, as may happen at any time."""
        return self.deployment.is_removed(self.sites[client])

    def online(self) -> Mapping[int, int]:
        """The node of each client that is connected now."""
        if not self.insecure:
            nodes = {node_key(node.public_key): node.node_id for node in self.grid.get_nodes()}
            # In the order of the keys: where a site is there with both, its new one counts.
            known = {client: nodes[key] for key, client in self._known_keys().items() if key in nodes}
        else:
            present = set(self.grid.get_node_ids())
            self.claims = {client: node for client, node in self.claims.items() if node in present}
            known = dict(self.claims)
        return {client: node for client, node in known.items() if not self.removed(client)}

    def _known_keys(self) -> dict[bytes, int]:
        """Keys as the deployment's files have them now: they may be replaced while a run lasts."""
        if time.monotonic() > self.until:
            with contextlib.suppress(ConfigError):
                self.keys = site_keys(self.deployment)
            self.until = time.monotonic() + LOOK
        return self.keys

    def unknown(self) -> list[int]:
        """Connected nodes that have not said who they are; with authentication there are none."""
        if not self.insecure:
            return []
        online = self.online()
        doubles = {node for node, client in self.second.items() if client in online}
        taken = set(online.values()) | self.refused | doubles
        return sorted(set(self.grid.get_node_ids()) - taken)

    def claim(self, node: int, name: str, say: Callable[[str], None]) -> int | None:
        """The client number for a node that calls itself ``name``; None where that cannot be."""
        if name not in self.sites or self.deployment.is_removed(name):
            self.refused.add(node)
            say(f"a node that calls itself '{name[:60]}' is not one of the sites; it is left out")
            return None
        client = self.sites.index(name)
        if client in self.online():
            self.second[node] = client
            say(f"a second node calls itself {name}; it is left out while the first is connected")
            return None
        self.claims[client] = node
        return client


def previous_key(site: Site) -> Path:
    """The key that a site had before, while it is admitted beside the new one."""
    return site.path / "previous.pub"


def previous_note(deployment: Deployment, name: str) -> Path:
    """Which node the SuperLink's database has for that key."""
    return deployment.state / NOTES / f"{name}.previous"


def former_key(site: Site) -> bytes:
    """The key that a site had before, as long as it counts; empty where there is none."""
    with contextlib.suppress(OSError, ConfigError):
        if former_until(site) > datetime.now(UTC):
            return site_key(previous_key(site))
    return b""


def former_until(site: Site) -> datetime:
    """Until when that key counts; :class:`ConfigError` where its file, edited by hand, does not say so."""
    file = previous_key(site)
    try:
        until = datetime.fromisoformat(file.read_text(encoding="ascii").split()[2].removeprefix("until="))
    except (ValueError, IndexError):
        raise ConfigError(
            f"{file} does not specify until when the former key of {site.name} is accepted, so it is not "
            "accepted; end its line with a time such as until=2026-12-31T00:00:00+00:00, or delete the file"
        ) from None
    if until.utcoffset() is None:
        raise ConfigError(
            f"the time in {file} has no time zone, so the former key of {site.name} is not accepted; write "
            f"until={until.isoformat()}+00:00 for UTC, or delete the file"
        )
    return until


def site_keys(deployment: Deployment, *, former: bool = True) -> dict[bytes, int]:
    """The client number of each site's public key, ``former`` ones first. A removed site has none."""
    keys: dict[bytes, int] = {}
    if former:
        sites = [(client, deployment.site(name)) for client, name in _present(deployment)]
        keys = {key: client for client, site in sites if (key := former_key(site))}
    for client, name in _present(deployment):
        file = deployment.site(name).public_key
        key = site_key(file)
        if keys.get(key, client) != client:  # its own former key, where a crash came before the new one
            raise ConfigError(f"{file} is also the key of {deployment.sites[keys[key]]}; each needs its own")
        keys[key] = client
    return keys


def _present(deployment: Deployment) -> list[tuple[int, str]]:
    return [(k, name) for k, name in enumerate(deployment.sites) if not deployment.is_removed(name)]


def noted(deployment: Deployment, name: str) -> dict[str, str]:
    """The ``key`` and ``node`` of a site that the SuperLink's database has; empty where it has none. That of
    its former key is noted as ``NAME.previous``.
    """
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((deployment.state / NOTES / name).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
