"""An experiment: settings, run as a federation on this machine, written down as it goes."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Iterable
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import sha256, write_bytes, write_tensors
from proxyfl.core.provenance import this_commit
from proxyfl.data import sources
from proxyfl.data.files import data_root
from proxyfl.federation.client import numerics
from proxyfl.federation.loop import Observer, run_rounds
from proxyfl.runs import checkpoint, repair
from proxyfl.runs.assembly import assemble, model_card
from proxyfl.runs.directory import AT_SITES, RunDirectory
from proxyfl.runs.metrics_log import Mark
from proxyfl.runs.recorder import Recorder
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name, from_short, load_toml, resolve, to_toml
from proxyfl.runs.simulation import Simulation, prepare
from proxyfl.runs.start import settle_start, write_start


class Experiment:
    """What to train. ``Experiment("proxyfl", "digits", rounds=20, seed=3).run()`` gives a :class:`Run`.

    ``preset`` is a data set's protocol (default: digits) or a TOML file. Further settings by short name
    (``rounds``, ``alpha``, ``seed`` …) or in full with double underscores (``method__tau=0.9``).
    """

    def __init__(
        self,
        method: str | None = None,
        preset: str | Path | None = None,
        *,
        data_root: str | Path | None = None,
        config: Config | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and (method is not None or preset is not None or settings):
            raise ConfigError("give either a config or a method, a preset and settings, not both")
        config = settle_start(config or load_config(preset or "digits", from_short(settings), method))
        self.data_root = Path(data_root) if data_root else None
        name = sources.absolute(config.data.name, self.data_root)
        self.config = dataclasses.replace(config, data=dataclasses.replace(config.data, name=name))

    def run(
        self,
        directory: str | Path | None = None,
        observers: Iterable[Observer] = (),
        workers: int | None = None,
    ) -> Run:
        """Create the run's directory and train to the end.

        ``workers`` processes train clients at the same time, by default one per core; 0 trains them in this
        process. The result is the same to the bit.
        """
        run = RunDirectory(directory or Path("runs") / default_name(self.config))
        if run.path.exists():
            raise RunError(
                f"{run.path} exists; continue it with 'proxyfl resume {run.path}' or choose another name"
            )
        simulation = prepare(self.config, self.data_root)
        if simulation.dataset.partial:
            labels = f"{simulation.per_class} labels per class"
            print(f"note: {self.config.data.name}: {simulation.dataset.partial}; {labels}", file=sys.stderr)
        run.create(lambda aside: _furnish(aside, self.config, simulation, self.data_root))
        return _continue(run, simulation, observers, workers)


def resume(
    directory: str | Path,
    observers: Iterable[Observer] = (),
    data_root: str | Path | None = None,
    workers: int | None = None,
) -> Run:
    """Go on with a run that was stopped, however it was stopped. A finished run is left as it is."""
    run = RunDirectory(directory)
    root = Path(data_root) if data_root else None
    aside = RunDirectory(run.aside)
    if not run.path.exists() and aside.config.is_file():
        config = resolve("", load_toml(aside.config))
        return Experiment(config=config, data_root=root or _recorded_root(aside)).run(
            directory, observers, workers
        )
    run.require()
    saved, _ = checkpoint.load_newest(run)
    repair.require_same_config(run, saved)
    if saved.run_files.get("data") == AT_SITES:
        raise RunError(
            f"{run.path} is a real federation's run; continue it with 'proxyfl deploy run {run.path.parent}'"
        )
    config = resolve("", load_toml(run.config))
    root = root or _recorded_root(run)
    simulation = prepare(config, root, repair.intact_partition(run, saved))
    if simulation.fingerprint() != saved.run_files["data"]:
        raise RunError(
            f"the data in {root or 'the data folder'} is not what {run.path} began with; see --data-root"
        )
    return _continue(run, simulation, observers, workers)


def load_config(preset: str | Path, overrides: dict[str, Any], method: str | None = None) -> Config:
    """A config from a preset's name or a TOML file, overrides, and a method's name."""
    return settle_start(_load_config(preset, overrides, method))


def _load_config(preset: str | Path, overrides: dict[str, Any], method: str | None) -> Config:
    layers = [overrides, {"method": {"name": method}} if method else {}]
    if isinstance(preset, Path) or str(preset).endswith(".toml"):
        table = load_toml(Path(preset))
        written, asked = table.get("fidelity"), overrides.get("fidelity")
        if written and asked and written != asked:
            raise ConfigError(
                f"{preset} was written for fidelity '{written}'; take that line out to read it as '{asked}', "
                f"or make another with 'proxyfl config copy PRESET FILE.toml --fidelity {asked}'"
            )
        named = table.get("method", {}).get("name") if isinstance(table.get("method"), dict) else None
        if method and named and method != named:
            table = {**table, "method": {}}
        return resolve("", table, *layers)
    return resolve(str(preset), *layers)


def _furnish(aside: RunDirectory, config: Config, simulation: Simulation, root: Path | None) -> None:
    """Fill a new directory. Where the config is there, so is where the data was: with both, a creation that
    was cut short can be repeated.
    """
    write_bytes(aside.environment, json.dumps(_describe(config, simulation, root), indent=1).encode())
    write_bytes(aside.config, to_toml(config, "proxyfl run config.toml").encode())
    write_tensors(aside.partition, simulation.partition.to_tensors())
    write_start(aside, config, simulation)
    for file in (aside.metrics, aside.metrics_copy, aside.timing, aside.events):
        file.touch()
    federation, trainer = assemble(aside, config, simulation)
    state = federation.start(trainer.initial_weights())
    if config.model.weights_hash:
        with numerics(config.compute):
            accuracy = federation.evaluate(state).accuracy
        noted = {**_describe(config, simulation, root), "start_accuracy": accuracy}
        write_bytes(aside.environment, json.dumps(noted, indent=1).encode())
    files = {file.name: sha256(file) for file in (aside.partition, aside.environment)}
    files["data"] = simulation.fingerprint()
    checkpoint.save(aside, state, Mark.of(b""), config.keep.checkpoints, files)
    aside.event("created")


def _continue(
    run: RunDirectory, simulation: Simulation, observers: Iterable[Observer], workers: int | None
) -> Run:
    with run.locked():
        saved, warnings = checkpoint.load_newest(run, states=True)
        config = resolve("", load_toml(run.config))
        run.tidy()
        for warning in [*warnings, *repair.repair(run, saved, config, simulation)]:
            run.event("warning", text=warning)
            print(f"warning: {warning}", file=sys.stderr)
        if saved.state.round >= config.federation.rounds:
            return Run(run.path)
        run.event("resumed" if saved.state.round else "started", round=saved.state.round)
        federation, _ = assemble(run, config, simulation, workers)
        card = model_card(config, simulation, federation)
        recorder = Recorder(run, config, federation.method, card, saved)
        with closing(federation.engine), numerics(config.compute):
            run_rounds(federation, saved.state, [recorder, *observers])
        run.event("finished", round=config.federation.rounds)
    return Run(run.path)


def describe_machine(config: Config, *packages: str) -> dict[str, Any]:
    """Versions, threads and kind of machine: what a reader needs to trust or repeat a run."""
    names = ("proxyfl", "torch", "numpy", "safetensors", *packages)
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "commit": this_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": config.compute.threads,
        "dtype": config.compute.dtype,
        "device": config.compute.device,
    }


def _describe(config: Config, simulation: Simulation, root: Path | None) -> dict[str, Any]:
    return {
        **describe_machine(config),
        "data_root": str(data_root(root).resolve()),
        "data": simulation.fingerprint(),
        "data_partial": simulation.dataset.partial,
        "labels_per_class": simulation.per_class,
    }


def _recorded_root(run: RunDirectory) -> Path | None:
    recorded = run.hints().get("data_root")
    return Path(recorded) if recorded and isinstance(recorded, str) else None
