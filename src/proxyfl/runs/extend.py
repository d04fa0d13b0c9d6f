"""More rounds for a run: the same bits as if it had been begun with them, where no setting depends on it."""

from __future__ import annotations

import dataclasses
import sys

from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.methods import registry
from proxyfl.runs import checkpoint, manifests
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.config_file import recorded, to_toml
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.metrics_log import Mark


def extend(run: RunDirectory, saved: Checkpoint, rounds: int) -> Checkpoint:
    """Give a run this many rounds altogether; whoever asks holds its lock. The checkpoint to go on from.

    Checkpoints are written again first and the config last, so that after a crash in between the run goes on
    as it was, or says how to take the new config.
    """
    config = recorded(run.config)
    longer = lengthened(config, rounds, str(run.path))
    if longer == config:
        return saved
    for note in depends_on_total(config, rounds):
        print(f"note: {note}", file=sys.stderr)
    text = to_toml(longer, "proxyfl run config.toml").encode()
    known = manifests.folders(run)
    for folder in reversed(known):
        try:
            each = checkpoint.read(folder)
        except RunError:
            continue  # damaged before, and passed over as before
        metrics, clients = Mark.of(each.metrics), Mark.of(each.clients or b"")
        checkpoint.save(run, each.state, metrics, len(known), each.run_files, text, clients=clients)
    write_bytes(run.config, text)
    run.event("extended", rounds=rounds, before=config.federation.rounds)
    return dataclasses.replace(saved, config=text)


def lengthened(config: Config, rounds: int, run: str) -> Config:
    """The config with more rounds; fewer are refused."""
    before = config.federation.rounds
    if rounds < before:
        raise RunError(
            f"{run} has {before} rounds in its settings and cannot have {rounds}; give more, or none"
        )
    return dataclasses.replace(config, federation=dataclasses.replace(config.federation, rounds=rounds))


def depends_on_total(config: Config, rounds: int) -> list[str]:
    """What makes the longer run differ from one that was begun with all its rounds, in words."""
    before, notes = config.federation.rounds, []
    if config.train.schedule == "cosine":
        notes.append(
            f"train.schedule = 'cosine' spans all rounds: the first ones followed a curve over {before}, the "
            f"others follow one over {rounds}, so this is not a run of {rounds} rounds from its start"
        )
    if before % config.federation.evaluate_every:
        notes.append(f"round {before} was evaluated because it was the last one (federation.evaluate_every)")
    try:
        own = not registry.find(config.method.name).method.__module__.startswith("proxyfl.")
    except ProxyFLError:
        own = True
    if own:
        notes.append(
            f"if {config.method.name} uses ctx.rounds, its first rounds ran with {before} "
            f"and the others with {rounds}"
        )
    return notes
