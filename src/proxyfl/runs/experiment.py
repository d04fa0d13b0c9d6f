"""An experiment: settings, run as a federation on this machine, written down as it goes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proxyfl.core.config import Config, DataSettings, MethodSettings
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.trees import table_in
from proxyfl.data import sources
from proxyfl.engines.choose import EngineFactory
from proxyfl.engines.cluster.engine import RayEngine
from proxyfl.federation.loop import Observer
from proxyfl.runs import checkpoint, own, repair
from proxyfl.runs.build import assemble
from proxyfl.runs.checkpoint import Checkpoint
from proxyfl.runs.config_file import load_preset, load_toml, recorded
from proxyfl.runs.describe import require_names
from proxyfl.runs.directory import AT_SITES, RunDirectory
from proxyfl.runs.exact import require_exact
from proxyfl.runs.extend import extend, lengthened
from proxyfl.runs.federation import Federation
from proxyfl.runs.loggers import checked, find_all
from proxyfl.runs.protocols import SHARED, named, protocol_layer
from proxyfl.runs.recording import Recording
from proxyfl.runs.run import Run
from proxyfl.runs.settings import default_name, resolve
from proxyfl.runs.short_names import from_short
from proxyfl.runs.simulation import prepare, remarks, require_same_data
from proxyfl.runs.start import load_start, read_start, settle_start


class Experiment:
    """What to train. ``Experiment("proxyfl", "digits", rounds=20, seed=3).run()`` returns a :class:`Run`.

    ``preset`` is a data set's protocol (default: digits), your own data (``folder:PATH``, ``npz:FILE``,
    ``table:FILE``: settings are chosen from it) or a TOML file. Other settings are given by short name
    (``rounds``, ``alpha``, ``seed`` …) or in full with double underscores (``method__tau=0.9``).
    With ``protocol="own"``, the settings of the method's own paper replace those of the preset.

    >>> import proxyfl
    >>> experiment = proxyfl.Experiment("fixmatch-gpl", "digits", rounds=5, method__tau=0.9)
    >>> experiment.config.method.parameters["tau"]
    0.9
    >>> experiment.run("runs/first")  # doctest: +SKIP
    """

    def __init__(
        self,
        method: str | None = None,
        preset: str | Path | None = None,
        *,
        data_root: str | Path | None = None,
        config: Config | None = None,
        protocol: str = SHARED,
        **settings: Any,
    ) -> None:
        described = method is not None or preset is not None or settings or protocol != SHARED
        if config is not None and described:
            raise ConfigError("give either a config or a method, a preset and settings, not both")
        self.data_root = Path(data_root) if data_root else None
        if config is None:
            config = load_config(preset or "digits", from_short(settings), method, self.data_root, protocol)
        config = settle_start(config)
        name = sources.absolute(config.data.name, self.data_root)
        self.config = dataclasses.replace(config, data=dataclasses.replace(config.data, name=name))

    def __repr__(self) -> str:
        config = self.config
        what = f"{config.method.name} on '{config.data.name}', {config.federation.rounds} rounds"
        return f"<Experiment: {what}, seed {config.seed}>"

    def run(
        self,
        directory: str | Path | None = None,
        observers: Iterable[Observer] = (),
        workers: int | None = None,
        *,
        engine: EngineFactory | None = None,
        log: str | Iterable[str] = (),
        progress: bool = False,
    ) -> Run:
        """Create the run's directory and train to the end.

        ``log`` names tools to log to as well: tensorboard, mlflow, wandb. ``progress`` shows a progress bar.

        ``workers`` is the number of processes that train clients in parallel, by default one per core; with
        0, clients are trained in this process. ``engine`` replaces them, for example by ``RayEngine()``.
        Results are bit-identical in all cases.
        """
        run = RunDirectory(directory or Path("runs") / default_name(self.config))
        if run.path.exists():
            raise RunError(
                f"{run.path} exists; continue it with 'proxyfl resume {run.path}' or choose another name"
            )
        watching = checked(observers)
        find_all(log)
        federation = self.federation(workers, engine)
        dataset = federation.simulation.dataset
        if dataset.partial:
            labels = f"{federation.simulation.per_class} labels per class"
            print(f"note: {self.config.data.name}: {dataset.partial}; {labels}", file=sys.stderr)
        for line in remarks(self.config, federation.simulation):
            print(line, file=sys.stderr)
        federation.recording = Recording.create(run, federation, self.data_root)
        federation.run(watching, log=log, progress=progress)
        return Run(run.path)

    def federation(self, workers: int | None = None, engine: EngineFactory | None = None) -> Federation:
        """The experiment as a :class:`Federation`, which is not recorded."""
        simulation = prepare(self.config, self.data_root)
        start = load_start(self.config, simulation)
        return assemble(self.config, simulation, start=start, workers=workers, engine=engine)


def resume(
    directory: str | Path,
    observers: Iterable[Observer] = (),
    data_root: str | Path | None = None,
    workers: int | None = None,
    *,
    engine: EngineFactory | None = None,
    rounds: int | None = None,
    log: str | Iterable[str] = (),
    progress: bool = False,
    exact: bool = False,
) -> Run:
    """Resume a run, however it was stopped. A finished run is left unchanged unless ``rounds``, the total
    number, is larger; ``engine``, ``log`` and ``progress`` as in :meth:`Experiment.run`.

    Where this version or this machine may compute other last bits than before, a warning says so;
    with ``exact`` it is an error, as it is for a run that was continued so before, and the run is left as
    it is.

    >>> import proxyfl
    >>> run = proxyfl.resume("runs/first")  # doctest: +SKIP
    >>> run = proxyfl.resume("runs/first", rounds=40)  # doctest: +SKIP
    """
    watching = checked(observers)
    find_all(log)
    run = RunDirectory(directory)
    root = Path(data_root) if data_root else None
    aside = RunDirectory(run.aside)
    if exact and isinstance(engine, RayEngine):
        engine = dataclasses.replace(engine, exact=True)
    if not run.path.exists() and aside.config.is_file():
        config = resolve("", load_toml(aside.config))
        config = lengthened(config, rounds, str(run.path)) if rounds else config
        experiment = Experiment(config=config, data_root=root or aside.data_root())
        return experiment.run(directory, watching, workers, engine=engine, log=log, progress=progress)
    with run.require().locked():
        saved, warnings = checkpoint.load_newest(run, states=True)
        repair.require_same_config(run, saved)
        config = recorded(run.config)
        if exact and saved.state.round < (rounds or config.federation.rounds):
            require_exact(run, saved.state.round, config.compute)
        if rounds:
            require_names(load_toml(run.config), str(run.path))
            saved = extend(run, saved, rounds)
        federation = _restored(run, saved, root or run.data_root(), workers, engine)
        federation.recording = Recording(run, saved, warnings, locked=True)
        federation.state = saved.state
        federation.run(watching, log=log, progress=progress)
    return Run(run.path)


def _restored(
    run: RunDirectory,
    saved: Checkpoint,
    root: Path | None,
    workers: int | None,
    engine: EngineFactory | None,
) -> Federation:
    """The federation that a run began with."""
    if saved.run_files.get("data") == AT_SITES:
        raise RunError(
            f"{run.path} is a real federation's run; continue it with 'proxyfl deploy run {run.path.parent}'"
        )
    table = load_toml(run.config)
    require_names(table, str(run.path))
    config = resolve("", table)
    simulation = prepare(config, root, repair.intact_partition(run, saved))
    if simulation.fingerprint() != saved.run_files["data"]:
        raise RunError(
            f"the data in {root or 'the data folder'} is not the data {run.path} was "
            "started with; see --data-root"
        )
    require_same_data(simulation.dataset, simulation.partition)
    return assemble(config, simulation, start=read_start(run, config), workers=workers, engine=engine)


def load_config(
    preset: str | Path,
    overrides: dict[str, Any],
    method: str | None = None,
    root: Path | None = None,
    protocol: str = SHARED,
) -> Config:
    """A config from a preset's name, a person's own data or a TOML file, overrides, and a method's name.

    ``root`` is the data folder, below which own data may lie. The ``protocol`` goes over preset or file, and
    what is asked for over that.
    """
    name, below = _below(preset, overrides, method, root)
    asked = [overrides, {"method": {"name": method}} if method else {}]
    tables = [load_preset(name) if name else {}, below, *asked]
    wanted = named("method", *tables) or MethodSettings().name
    own = protocol_layer(protocol, wanted, named("data", *tables) or DataSettings().name)
    return settle_start(resolve(name, below, own, *asked))


def _below(
    preset: str | Path, overrides: dict[str, Any], method: str | None, root: Path | None
) -> tuple[str, dict[str, Any]]:
    """The preset, and the settings that own data or a file put over it."""
    if isinstance(preset, str) and sources.is_own(preset):
        return own.PRESET, own.chosen(preset, overrides, root)
    if isinstance(preset, Path) or str(preset).endswith(".toml"):
        table = load_toml(Path(preset))
        require_names(table, str(preset))
        written, asked = table.get("fidelity"), overrides.get("fidelity")
        if written and asked and written != asked:
            raise ConfigError(
                f"{preset} was written for fidelity '{written}'; remove that line to read it as '{asked}', "
                f"or make another with 'proxyfl config copy PRESET FILE.toml --fidelity {asked}'"
            )
        named = table_in(table, "method").get("name")
        if method and named and method != named:
            table = {**table, "method": {}}
        return "", table
    return str(preset), {}
