"""A federation written into a run directory: from its beginning, afterwards, or where it was stopped."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxyfl.core.checksum import write_tensors, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.files import sha256, write_bytes
from proxyfl.core.provenance import describe_machine
from proxyfl.core.state import content_hash
from proxyfl.core.trees import dotted
from proxyfl.data.files import data_root
from proxyfl.data.partition import NATURAL
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import Observer
from proxyfl.models import is_adapter
from proxyfl.runs import checkpoint, manifests, repair
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.config_file import load_toml, to_toml
from proxyfl.runs.directory import FINISHED, RunDirectory
from proxyfl.runs.exact import CREATED, OTHER, MixedNodes, continued, differs, require_exact
from proxyfl.runs.export import ModelCard, model_card, save_model
from proxyfl.runs.metrics_log import CLIENTS, Mark, restore
from proxyfl.runs.recorder import Recorder, client_lines, metrics_line, timing_line

if TYPE_CHECKING:
    from proxyfl.runs.federation import Federation


class Recording:
    """The run directory of a federation, and who writes into it.

    ``saved`` is the checkpoint it goes on from; ``locked`` says that the caller holds the run's lock.
    """

    def __init__(
        self, run: RunDirectory, saved: Checkpoint, warnings: list[str] | None = None, *, locked: bool = False
    ) -> None:
        self.run, self.saved, self.warnings, self.locked = run, saved, warnings or [], locked
        self.recorder: Recorder | None = None
        self.unsure = False
        """Whether a round ended in a way that leaves open what of it was written."""
        self._known = manifests.folders(run)

    @classmethod
    def create(cls, run: RunDirectory, federation: Federation, root: Path | None = None) -> Recording:
        """A new directory that holds the federation as it stands; ``root`` is where its data lies."""
        made: list[Checkpoint] = []
        run.create(lambda aside: made.append(_furnish(aside, federation, root)))
        folder = run.checkpoints / made[0].folder.name
        return cls(run, dataclasses.replace(made[0], folder=folder))

    @classmethod
    def reopen(cls, run: RunDirectory, federation: Federation, *, exact: bool = False) -> Recording:
        """A directory that was recorded from the same objects."""
        with run.require().locked():
            saved, warnings = checkpoint.load_newest(run, states=True)
            repair.require_same_config(run, saved)
            _require_same(run, saved, federation)
            if exact and saved.state.round < federation.config.federation.rounds:
                require_exact(run, saved.state.round, federation.config.compute)
        return cls(run, saved, warnings)

    @contextmanager
    def opened(self, federation: Federation) -> Iterator[list[Observer]]:
        """For as long as rounds are played: the directory locked, repaired where it must be. Nobody writes
        into that of a finished run.
        """
        rounds = federation.config.federation.rounds
        with nullcontext() if self.locked else self.run.locked():
            if manifests.folders(self.run) != self._known:
                raise RunError(f"another process continued {self.run.path}; resume it once more")
            if self.unsure:
                self._read_again(federation)
            ended = federation.state.round >= rounds
            if self.recorder is None:
                if self.saved.state.round != federation.state.round:
                    raise RunError(f"{self.run.path} ends with another round than this federation; resume it")
                self._repair(federation)
                self.recorder = None if ended else self._begin(federation)
            try:
                yield [] if self.recorder is None else [self.mixed, self.recorder]
            finally:
                self._known = manifests.folders(self.run)
            if not ended and federation.state.round >= rounds:
                self.run.event(FINISHED, round=rounds)

    def _read_again(self, federation: Federation) -> None:
        """Go back to the newest checkpoint: nobody knows what was written behind it."""
        self.saved, self.warnings = checkpoint.load_newest(self.run, states=True)
        federation.state = self.saved.state
        federation.history = [
            report for report in federation.history if report.number <= federation.state.round
        ]
        self.recorder, self.unsure = None, False

    def _repair(self, federation: Federation) -> None:
        run, saved = self.run, self.saved
        run.tidy()
        card = card_of(federation)
        lost = repair.repair(run, saved, federation.simulation.partition, federation.trainer.whole, card)
        for warning in [*self.warnings, *lost]:
            run.event("warning", text=warning)
            print(f"warning: {warning}", file=sys.stderr)

    def _begin(self, federation: Federation) -> Recorder:
        run, saved = self.run, self.saved
        repair.require_same_frozen(run, saved, federation.trainer.checksums)
        run.event("resumed" if saved.state.round else "started", round=saved.state.round)
        for warning in continued(run, saved.state.round, federation.config.compute):
            print(f"warning: {warning}", file=sys.stderr)
        self.mixed = MixedNodes(run, federation.server.engine)
        federation.settle(run.path)
        return Recorder(run, federation.config, federation.trainer.whole, card_of(federation), saved)


def card_of(federation: Federation) -> dict[str, Any]:
    """What the federation's models say about themselves, but for the round."""
    dataset, views = federation.simulation.dataset, federation.simulation.test_views
    return model_card(
        federation.config,
        federation.method,
        channels=dataset.channels,
        image_size=dataset.image_size,
        classes=dataset.classes,
        mean=views.mean,
        std=views.std,
        features=dataset.features,
        encoded=dataset.encoded,
    )


def _furnish(run: RunDirectory, federation: Federation, root: Path | None) -> Checkpoint:
    """Fill a new directory. Where the config is there, so is where the data was: with both, a creation that
    was cut short can be repeated.
    """
    config, simulation, state = federation.config, federation.simulation, federation.state
    noted = {
        **describe_machine(config.compute),
        "data_root": str(data_root(root).resolve()),
        "data": simulation.fingerprint(),
        "data_partial": simulation.dataset.partial,
        "labels_per_class": simulation.per_class,
    }
    if config.partition.scheme == NATURAL:
        noted["clients"] = list(simulation.dataset.clients)
    write_bytes(run.environment, json.dumps(noted, indent=1).encode())
    write_bytes(run.config, to_toml(config, "proxyfl run config.toml").encode())
    write_tensors(run.partition, simulation.partition.to_tensors())
    for file in (run.metrics, run.metrics_copy, run.timing, run.events):
        file.touch()
    if federation.trainer.start:
        network = federation.trainer.method.model(state.weights)
        drawn = network.keys() - federation.trainer.start.keys()
        if missing := sorted(name for name in drawn if not is_adapter(name)):
            what = f"the initial weights lack {', '.join(missing)}: these are initialised from the seed"
            print(f"note: {what}", file=sys.stderr)
            run.event("note", text=what)
        write_verified(run.start, federation.trainer.start)
        with numerics(config.compute):
            start = federation.server.start(federation.trainer.initial_weights())
            accuracy = federation.server.evaluate(start).accuracy
        write_bytes(run.environment, json.dumps({**noted, "start_accuracy": accuracy}, indent=1).encode())
    metrics, clients = _write_history(run, federation)
    files = {file.name: sha256(file) for file in (run.partition, run.environment)}
    files |= {"data": simulation.fingerprint(), **federation.trainer.checksums}
    kept, marks = config.keep.checkpoints, (Mark.of(metrics), Mark.of(clients))
    folder = checkpoint.save(run, state, marks[0], kept, files, clients=marks[1])
    run.event(CREATED)
    if reason := differs(federation.server.engine):  # of rounds that nobody recorded
        run.event(OTHER, round=0, reason=reason)
    return Checkpoint(folder, state, metrics, run.config.read_bytes(), files, clients)


def _write_history(run: RunDirectory, federation: Federation) -> tuple[bytes, bytes]:
    """What was played before anyone wrote it down: metrics, timing, snapshots, models, what clients keep.
    Gives the metrics, and what was noted of single clients.
    """
    reports, keep = federation.history, federation.config.keep
    metrics = b"".join(metrics_line(report.metrics) for report in reports)
    clients = b"".join(client_lines(report.rows) for report in reports)
    restore(run, metrics)
    restore(run, clients, CLIENTS)
    timing = "".join(timing_line(report.number, report.timing, report.rows) for report in reports)
    write_bytes(run.timing, timing.encode())
    for report in reports:
        if keep.snapshot(report.number, federation.config.federation.rounds):
            write_verified(run.snapshots / f"round-{report.number:08d}.safetensors", report.snapshots)
    model, card = federation.trainer.whole, card_of(federation)
    if reports:
        last = ModelCard(**card, round=federation.state.round, accuracy=reports[-1].accuracy)
        save_model(run.models / "last.safetensors", model(federation.state.weights), last)
    if federation.best is not None:
        best = ModelCard(**card, round=federation.best.number, accuracy=federation.best.accuracy)
        for place in (run.models / "best.safetensors", run.best_copy):
            save_model(place, model(federation.best.state.weights), best)
    if scratch := federation.scratch:
        for place in (run.clients, run.server):
            if (kept := scratch / place.name).is_dir():
                shutil.copytree(kept, place)
    return metrics, clients


def _require_same(run: RunDirectory, saved: Checkpoint, federation: Federation) -> None:
    """Refuse to go on with other objects than those the run began with."""
    theirs, ours = dotted(load_toml(run.config)), dotted(tomllib.loads(to_toml(federation.config)))
    changed = [name for name in theirs if theirs[name] != ours.get(name)]
    if changed:
        shown = ", ".join(f"{name} was {theirs.get(name)!r}, is {ours.get(name)!r}" for name in changed[:3])
        raise RunError(f"{run.path} was recorded from another federation: {shown}; build it as it was")
    if federation.simulation.fingerprint() != saved.run_files["data"]:
        raise RunError(f"the data is not what {run.path} was started with; use the same images and labels")
    began = repair.intact_partition(run, saved)
    ours_dealt = content_hash(federation.simulation.partition.to_tensors())
    if began is not None and content_hash(began.to_tensors()) != ours_dealt:
        raise RunError(
            f"the partition is not the one {run.path} was started with; partition the images the same way"
        )
