"""More rounds for a federation, also for one that is finished."""

from __future__ import annotations

import dataclasses

from proxyfl.core.trees import merge
from proxyfl.deploy import approval, scaffold
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Deployment
from proxyfl.runs import checkpoint
from proxyfl.runs.config_file import recorded
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.extend import extend, lengthened


def lengthen(deployment: Deployment, rounds: int) -> Deployment:
    """The deployment with so many rounds altogether; its run, where there is one, goes on to them.

    Sites have to approve it, since more rounds tell more.
    """
    before = deployment.config.federation.rounds
    tree = merge(deployment.experiment, {"federation": {"rounds": rounds}})
    longer = dataclasses.replace(deployment, experiment=tree)
    longer.check()

    def log() -> None:
        AuditLog(longer.path).add("lengthened", before=before, rounds=rounds)

    if deployment.run.is_dir():
        run = RunDirectory(deployment.run)
        with run.locked():
            saved, config = checkpoint.load_newest(run)[0], recorded(run.config)
            further = lengthened(config, rounds, str(run.path))  # raises before anything is logged
            if rounds != before or further != config:
                log()
            extend(run, saved, rounds)
    elif rounds != before:
        log()
    if rounds == before:
        return deployment
    scaffold.write_again(longer)
    approval.write_offers(longer)
    return Deployment.read(longer.path)
