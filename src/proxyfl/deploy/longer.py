"""More rounds for a federation, also for one that is finished; nothing else may change while it has a run."""

from __future__ import annotations

import contextlib
import dataclasses

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import begins_with
from proxyfl.core.trees import merge
from proxyfl.deploy import approval, scaffold
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Deployment
from proxyfl.encoders import settle_encoder
from proxyfl.runs import checkpoint
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.config_file import load_toml, recorded
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.extend import extend, lengthened
from proxyfl.runs.settings import resolve


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
    if rounds != before:
        scaffold.write_again(longer)
        longer = Deployment.read(longer.path)
    approval.write_offers(longer)  # also where a kill came before it
    return longer


def began_with(deployment: Deployment, run: RunDirectory, saved: Checkpoint) -> Config:
    """The settings that the run began with; ``federation.toml`` must still say the same."""
    if not begins_with(run.config, saved.config, whole=True):
        with contextlib.suppress(ConfigError):
            _require_same_rounds(
                deployment, run, recorded(run.config), recorded(saved.folder / "config.toml")
            )
        raise RunError(f"{run.config} was changed since the run began; restore it from {saved.folder}")
    config = resolve("", load_toml(run.config))
    ours, began = deployment.config.federation, config.federation
    if ours.quorum != began.quorum:
        raise RunError(
            f"{deployment.file}: quorum = {ours.quorum}, but the run began with {began.quorum}; "
            f"restore it, or move {run.path} away to start again"
        )
    model = settle_encoder(deployment.config).model
    model = dataclasses.replace(model, weights_hash=config.model.weights_hash)
    clients = min(config.partition.clients, len(deployment.sites))  # more may have joined
    partition = dataclasses.replace(deployment.config.partition, clients=clients)
    ours_now = dataclasses.replace(deployment.config, model=model, partition=partition)
    _require_same_rounds(deployment, run, config, ours_now)
    if config != ours_now:
        raise RunError(
            f"[experiment] of {deployment.file} was changed since the run began; restore it, "
            f"or move {run.path} away to start again"
        )
    return config


def _require_same_rounds(deployment: Deployment, run: RunDirectory, one: Config, other: Config) -> None:
    """Raise where two configs differ in their rounds alone, as after a kill while a run was lengthened."""
    fewer, more = sorted((one.federation.rounds, other.federation.rounds))
    same = dataclasses.replace(
        other, federation=dataclasses.replace(other.federation, rounds=one.federation.rounds)
    )
    if fewer != more and same == one:
        raise RunError(
            f"{run.path} was to have {more} rounds instead of {fewer}, but not all of its files say so; "
            f"repeat 'proxyfl deploy run {deployment.path} --rounds {more}'"
        )
