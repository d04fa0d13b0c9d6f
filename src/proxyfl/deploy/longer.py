"""More rounds for a federation, also for one that is finished."""

from __future__ import annotations

import dataclasses

from proxyfl.core.trees import merge
from proxyfl.deploy import approval, scaffold
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Deployment
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.extend import extend


def lengthen(deployment: Deployment, rounds: int) -> Deployment:
    """The deployment with so many rounds altogether; its run, where there is one, goes on to them.

    Sites have to approve it, since more rounds tell more.
    """
    before = deployment.config.federation.rounds
    if deployment.run.is_dir():
        run = RunDirectory(deployment.run)
        with run.locked():
            extend(run, checkpoint.load_newest(run)[0], rounds)
    if rounds == before:
        return deployment
    tree = merge(deployment.experiment, {"federation": {"rounds": rounds}})
    longer = dataclasses.replace(deployment, experiment=tree)
    scaffold.write_again(longer)
    approval.write_offers(longer)
    AuditLog(longer.path).add("lengthened", before=before, rounds=rounds)
    return Deployment.read(longer.path)
