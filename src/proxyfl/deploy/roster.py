"""Who the connected nodes are: by their registered keys, or without authentication by what they claim."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from flwr.serverapp import Grid

from proxyfl.core.errors import ConfigError
from proxyfl.deploy.settings import Deployment

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


def _site_key(file: Path) -> bytes:
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
            nodes = {self.keys.get(node_key(node.public_key)): node.node_id for node in self.grid.get_nodes()}
            known = {client: node for client, node in nodes.items() if client is not None}
        else:
            present = set(self.grid.get_node_ids())
            self.claims = {client: node for client, node in self.claims.items() if node in present}
            known = dict(self.claims)
        return {client: node for client, node in known.items() if not self.removed(client)}

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


def site_keys(deployment: Deployment) -> dict[bytes, int]:
    """The client number of each site's public key. One that was removed has none any more."""
    keys: dict[bytes, int] = {}
    for client, name in enumerate(deployment.sites):
        if deployment.is_removed(name):
            continue
        file = deployment.site(name).public_key
        key = _site_key(file)
        if key in keys:
            raise ConfigError(f"{file} is also the key of {deployment.sites[keys[key]]}; each needs its own")
        keys[key] = client
    return keys


def noted(deployment: Deployment, name: str) -> dict[str, str]:
    """The ``key`` and ``node`` of a site that the SuperLink's database has; empty where it has none."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((deployment.state / NOTES / name).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
