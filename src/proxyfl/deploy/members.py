"""Sites that join a federation and leave it, before a run or in the middle of one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.trees import merge
from proxyfl.deploy import operate, rotation, scaffold, shrink, signing
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.names import check_sites, known_site
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.status import is_finished
from proxyfl.runs.settings import resolve


def add_site(folder: str | Path, name: str) -> list[str]:
    """Another site at the end of the list; what was done, in sentences.

    Before a run, sites a round and quorum grow as ``deploy init`` would have chosen them, unless they were
    chosen otherwise. A run that has begun keeps both, and the site takes part from the next round on.
    """
    deployment, _ = shrink.settled(Deployment.read(folder))
    joins = shrink.has_list(deployment)
    if joins and deployment.config.privacy.clip:
        raise ConfigError(
            "the accounting of differential privacy holds for the sites that a run began with; add the site "
            f"when the run is over and {deployment.run} is moved away"
        )
    if name in deployment.sites:
        raise ConfigError(f"there is a site '{name}' already; choose another name")
    check_sites((name,))
    if (deployment.path / name).exists():
        raise RunError(f"{deployment.path / name} exists and is not overwritten; move it away first")
    if not deployment.insecure:
        rotation.require_authority(deployment)
        signing.signature_of(deployment)  # what the site is offered, before anything is written
    federation, sites = deployment.config.federation, (*deployment.sites, name)
    before = federation.per_round, deployment.quorum
    per_round, quorum = before if joins else _grown_rounds(deployment)
    ours = {
        "partition": {"clients": len(sites)},
        "federation": {"per_round": per_round, "quorum": quorum},
    }
    tree = merge(deployment.experiment, ours)
    grown = dataclasses.replace(deployment, sites=sites, quorum=quorum, experiment=tree)
    grown.check()
    AuditLog(grown.path).add("site added", site=name)
    scaffold.write_site(grown, name)
    scaffold.write_again(grown)
    _register(grown)
    was = "as before" if before == (per_round, quorum) else f"before: {before[1]} of {before[0]}"
    said = [
        f"{name} is site {len(sites)}; send it {grown.site_folder(name)}",
        f"a round asks {per_round} of {len(sites)} sites and needs the answers of {quorum} ({was}); to "
        f"change that, set per_round in [experiment.federation] and quorum in {grown.file} before a run",
    ]
    if joins and not is_finished(deployment):
        said.append(f"the run continues; {name} takes part from the first round after it is connected")
    return said


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
    AuditLog(deployment.path).add("site removed", site=name)
    place.parent.mkdir(mode=scaffold.PRIVATE, exist_ok=True)
    site.path.rename(place)
    said = [f"{name} is removed: its key is no longer admitted; its folder is now {place}"]
    if shrink.has_list(deployment):
        said += _in_a_run(deployment, name, len(staying))
    else:
        deployment, changes = shrink.without(deployment, [name])
        scaffold.write_again(deployment)
        said += changes
    _register(deployment)
    return said


def _register(deployment: Deployment) -> None:
    """Let a server that is running know which keys there are now; one that is not learns it at its start."""
    if not deployment.insecure and operate.answers(deployment):
        operate.register(deployment, operate.flower_home(deployment))


def _grown_rounds(deployment: Deployment) -> tuple[int, int]:
    """(sites a round, quorum) with one site more."""
    config, sites = deployment.config, len(deployment.sites)
    usual = resolve(config.preset).federation.per_round
    per_round, quorum = config.federation.per_round, deployment.quorum
    if per_round == min(usual, sites):
        per_round = min(usual, sites + 1)
        if quorum == config.federation.per_round // 2 + 1:
            quorum = per_round // 2 + 1
    return per_round, quorum


def _in_a_run(deployment: Deployment, name: str, staying: int) -> list[str]:
    """What removing a site means for the run that has begun, and for the next."""
    later = f"the next run begins without {name}: 'proxyfl deploy run' then takes it off the list"
    if is_finished(deployment):
        return [f"the finished run keeps its list of sites; {later}"]
    said = [f"the run keeps its list of sites and continues without {name}; {later}"]
    if staying < deployment.quorum:
        said.append(
            f"quorum = {deployment.quorum}, but {staying} site(s) are left: no round can count; "
            f"move {deployment.run} away and start again with a smaller quorum"
        )
    return said


def settle(deployment: Deployment) -> tuple[Deployment, list[str]]:
    """Before a run begins: sites removed in the run before leave the list. What changed, in sentences."""
    settled, said = shrink.settled(deployment)
    if said:
        scaffold.write_again(settled)
    return settled, said
