"""Who has labels: every client a few, the server alone, or some clients all of theirs and the others none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS, SERVER, require_scenario
from proxyfl.core.errors import ConfigError
from proxyfl.data.labels import Indices, legacy_generator
from proxyfl.data.ragged import Ragged, deal

MOST_NAMED = 20
"""Labelled clients that are named in a sentence."""


def require_server(where: str, server: Indices, labelled: Ragged, kept: Indices) -> None:
    """Refuse images of the server, or such that it holds out, that do not fit the scenario."""
    require_scenario(where)
    for part in (server, kept):
        if part.ndim != 1 or part.dtype != np.int64 or part.min(initial=0) < 0:
            raise ConfigError("the server's images must be a flat int64 array of indices")
    if len(kept) and where != SERVER:
        raise ConfigError("the server can hold out labelled images only if labels are at the server")
    if (where == SERVER) != bool(len(server)) or (len(server) and labelled.sizes.any()):
        raise ConfigError(
            "the server has all labelled images if labels are at the server, and none otherwise"
        )


def who_has_labels(where: str, server: Indices, labelled: Ragged, what: str = "images") -> str:
    """In a sentence; empty in the usual scenario."""
    if where == SERVER:
        return f"the server has {len(server):,} labelled {what}, the clients have none"
    if where != PARTIAL:
        return ""
    holders = np.flatnonzero(labelled.sizes).tolist()
    more = ", …" if len(holders) > MOST_NAMED else ""
    some = ", ".join(map(str, holders[:MOST_NAMED])) + more
    total = int(labelled.sizes.sum())
    verb = "has" if len(holders) == 1 else "have"
    return f"{len(holders):,} of {len(labelled):,} clients {verb} labels ({some}), for {total:,} {what}"


def scenario_tensors(server: Indices, where: str, kept: Indices) -> dict[str, Tensor]:
    """What a partition's file holds besides the lists of clients; nothing in the usual scenario."""
    if where == CLIENTS:
        return {}
    validation = {"server_validation": torch.tensor(kept)} if len(kept) else {}
    return {"server": torch.tensor(server), "where": torch.tensor(SCENARIOS.index(where)), **validation}


def read_scenario(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The inverse: arguments of a partition."""
    if "where" not in tensors:
        return {}
    where = tensors["where"]
    if where.shape != () or where.dtype != torch.int64 or not 0 <= int(where) < len(SCENARIOS):
        raise ConfigError("the partition does not record who has labels")
    lists = {name: tensors[name].cpu().numpy() for name in ("server", "server_validation") if name in tensors}
    return {**lists, "where": SCENARIOS[int(where)]}


def at_some(lists: Ragged, labelled: int, seed: int) -> tuple[Ragged, Ragged]:
    """The lists of ``labelled`` clients that ``seed`` draws among those that hold images, and those of the
    others; each leaves the lists of the other clients empty.
    """
    holders = np.flatnonzero(lists.sizes)
    if not 1 <= labelled < len(holders):
        raise ConfigError(
            f"labels.clients = {labelled} is out of range: {len(holders)} clients hold images whose class is "
            f"known, and some must be without labels; use 1 to {max(1, len(holders) - 1)}"
        )
    chosen = legacy_generator(seed, "split_seed").choice(holders, labelled, replace=False)
    owner, images = lists.flat()
    knows = np.isin(owner, chosen)
    first, second = (deal(images[part], owner[part], len(lists)) for part in (knows, ~knows))
    return first, second
