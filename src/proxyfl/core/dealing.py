"""Who has labels and who holds what: the settings of the sections ``[labels]`` and ``[partition]``."""

from __future__ import annotations

from dataclasses import dataclass

from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.settings import setting

CLIENTS, SERVER, PARTIAL = "clients", "server", "partial"
SCENARIOS = (CLIENTS, SERVER, PARTIAL)
"""Who has labels."""


@dataclass(frozen=True)
class LabelSettings:
    """Who has labels."""

    ratio: float = setting(0.1, "share of the training images that keep their label", low=0, high=1)
    per_class: int = setting(0, "labelled images per class; 0 derives it from ratio and rule", low=0)
    rule: str = setting(
        "release",
        "release: the released per-class counts; share: ratio of all images, the same number of each class; "
        "stratified: ratio of every class, at least one each (the default for your own data)",
        choices=("release", "share", "stratified"),
        paper="share",
    )
    ten_percent: int = setting(0, "the released per-class count at ratio 0.1; 0 if there is none", low=0)
    seed: int = setting(7, "seed of the labelled / unlabelled split", low=0)
    where: str = setting(
        CLIENTS,
        "who has labels: clients, a few at every client; server, at the server only; partial, "
        "labels.clients clients have all their labels and the others none, regardless of ratio and per_class",
        choices=SCENARIOS,
        later=True,
    )
    clients: int = setting(
        1, "clients whose images are all labelled, for labels.where = partial", low=1, later=True
    )


@dataclass(frozen=True)
class PartitionSettings:
    """Who holds what."""

    scheme: str = setting(
        "paired",
        "paired (the released scheme), dirichlet, iid, shards, quantity (uneven "
        "sizes), natural (the clients named by your data)",
        paper="dirichlet",
    )
    alpha: float = setting(
        0.1, "Dirichlet concentration; smaller is more heterogeneous, but 0 means IID", low=0
    )
    alpha_labelled: float = setting(0.0, "alpha for the labelled images; 0: same as alpha", low=0, later=True)
    alpha_unlabelled: float = setting(
        0.0, "alpha for the unlabelled images; 0: same as alpha", low=0, later=True
    )
    clients: int = setting(20, "registered clients (K)", low=1, high=10_000_000)
    seed: int = setting(0, "seed of the partition", low=0)


def require_scenario(where: str) -> None:
    if where not in SCENARIOS:
        raise ConfigError(f"unknown scenario '{where}'; {nearest(where, SCENARIOS)}")
