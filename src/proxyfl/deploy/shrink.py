"""A federation with fewer sites: the list, sites a round and the quorum, where they must shrink."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from proxyfl.deploy.settings import Deployment
from proxyfl.runs.directory import RunDirectory


def without(deployment: Deployment, names: Collection[str]) -> tuple[Deployment, list[str]]:
    """The deployment without these sites, and what else had to change for that, in sentences."""
    sites = tuple(one for one in deployment.sites if one not in names)
    tree, old = deployment.experiment, deployment.config.federation
    per_round, quorum = min(old.per_round, len(sites)), min(deployment.quorum, len(sites))
    shrunk = dataclasses.replace(
        deployment,
        sites=sites,
        quorum=quorum,
        experiment={
            **tree,
            "partition": {**tree.get("partition", {}), "clients": len(sites)},
            "federation": {**tree.get("federation", {}), "per_round": per_round, "quorum": quorum},
        },
    )
    pairs = (("per_round", old.per_round, per_round), ("quorum", deployment.quorum, quorum))
    return shrunk, [f"{what} is now {new}, it was {before}" for what, before, new in pairs if before != new]


def settled(deployment: Deployment) -> tuple[Deployment, list[str]]:
    """What the next run begins with: without the sites that were removed while another run had them.

    A run that has begun, or is being prepared, knows sites by their place in the list and keeps it.
    """
    gone = [name for name in deployment.sites if deployment.is_removed(name)]
    if not gone or has_list(deployment):
        return deployment, []
    shrunk, changes = without(deployment, gone)
    leave = "leaves the list of sites" if len(gone) == 1 else "leave the list of sites"
    return shrunk, [f"{', '.join(gone)} {leave}: removed before this run", *changes]


def has_list(deployment: Deployment) -> bool:
    """Whether a run goes by the list of sites as it is."""
    return deployment.run.exists() or RunDirectory(deployment.state).is_locked()
