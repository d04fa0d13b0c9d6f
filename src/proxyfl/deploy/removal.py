"""Taking a site out of a federation, before a run or in the middle of one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import operate, scaffold
from proxyfl.deploy.settings import Deployment, known_site


def remove_site(folder: str | Path, name: str) -> list[str]:
    """Take a site out; what was done, in sentences.

    Its key is admitted no longer, from this moment on. Before a run it leaves the list; a run that has begun
    knows sites by their place in the list, so that there it keeps its place and takes part no longer.
    """
    deployment = Deployment.read(folder)
    site = deployment.site(known_site(name, deployment.sites))
    if deployment.is_removed(name):
        raise ConfigError(f"{name} was removed already; its folder is {deployment.removed_folder(name)}")
    staying = [one for one in deployment.present if one != name]
    if not staying:
        raise ConfigError(f"{name} is the only site; a federation needs one")
    place = deployment.removed_folder(name)
    if place.exists():
        raise RunError(f"{place} is there from an earlier site of that name; move it away first")
    place.parent.mkdir(mode=scaffold.PRIVATE, exist_ok=True)
    site.path.rename(place)
    said = [f"{name} is removed: its key is no longer admitted; its folder is now {place}"]
    if deployment.run.exists():
        said.append(f"the run keeps its list of sites and goes on without {name}")
        if len(staying) < deployment.quorum:
            said.append(
                f"quorum = {deployment.quorum}, but {len(staying)} site(s) are left: no round can count; "
                f"move {deployment.run} away, lower quorum in {deployment.file} and begin anew"
            )
    else:
        deployment, changes = _without(deployment, name)
        said += changes
    if not deployment.insecure and operate.answers(deployment):
        operate.register(deployment, operate.flower_home(deployment))
    return said


def _without(deployment: Deployment, name: str) -> tuple[Deployment, list[str]]:
    """The deployment with one site less, and what else had to change for that."""
    sites = tuple(one for one in deployment.sites if one != name)
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
    scaffold.write_again(shrunk)
    pairs = (("per_round", old.per_round, per_round), ("quorum", deployment.quorum, quorum))
    return shrunk, [f"{what} is now {new}, it was {before}" for what, before, new in pairs if before != new]
