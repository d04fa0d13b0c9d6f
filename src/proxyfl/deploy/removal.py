"""Taking a site out of a federation, before a run or in the middle of one."""

from __future__ import annotations

from pathlib import Path

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import operate, scaffold, shrink
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.names import known_site
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.status import is_finished


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
    AuditLog(deployment.path).add("site removed", site=name)
    said = [f"{name} is removed: its key is no longer admitted; its folder is now {place}"]
    if shrink.has_list(deployment):
        said += _in_a_run(deployment, name, len(staying))
    else:
        deployment, changes = shrink.without(deployment, [name])
        scaffold.write_again(deployment)
        said += changes
    if not deployment.insecure and operate.answers(deployment):
        operate.register(deployment, operate.flower_home(deployment))
    return said


def _in_a_run(deployment: Deployment, name: str, staying: int) -> list[str]:
    """What removing a site means for the run that has begun, and for the next."""
    later = f"the next run begins without {name}: 'proxyfl deploy run' then takes it off the list"
    if is_finished(deployment):
        return [f"the finished run keeps its list of sites; {later}"]
    said = [f"the run keeps its list of sites and continues without {name}; {later}"]
    if staying < deployment.quorum:
        said.append(
            f"quorum = {deployment.quorum}, but {staying} site(s) are left: no round can count; "
            f"move {deployment.run} away and begin anew, with a quorum that fits"
        )
    return said


def settle(deployment: Deployment) -> tuple[Deployment, list[str]]:
    """Before a run begins: sites removed in the run before leave the list. What changed, in sentences."""
    settled, said = shrink.settled(deployment)
    if said:
        scaffold.write_again(settled)
    return settled, said
