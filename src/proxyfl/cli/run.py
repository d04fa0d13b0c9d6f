"""``proxyfl run``: train a method on a data set, as a preset or a TOML file says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    Fidelity,
    Log,
    Method,
    Protocol,
    Quiet,
    Runs,
    Scenario,
    Settings,
    Workers,
    command,
    examples,
    load_settings,
    option,
    out,
    require_device,
)
from proxyfl.cli.engine import Address, EngineName, PerClient, chosen_engine
from proxyfl.cli.present import settings_tree
from proxyfl.cli.progress import train
from proxyfl.cli.resume import creation_cut_short, go_on
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.engines.forkserver import start_early

if TYPE_CHECKING:
    from proxyfl.core.config import Config

EXAMPLES = examples(
    "proxyfl run",
    "proxyfl run digits --method fedavg --rounds 20 --seed 3",
    "proxyfl run cifar10 --data-root ~/data --label-ratio 0.2 --alpha 0.5 --device cuda",
    "proxyfl run cifar10 --method fixmatch-gpl --set method.tau=0.9 --set train.lr=0.05",
    "proxyfl run cifar10 --method semifl --protocol own --rounds 100",
    "proxyfl run folder:clinic --rounds 50",
    "proxyfl run mine.toml --name try-1 --resume",
)
PROTOCOL, MACHINE = "Protocol", "Machine and place"
OTHER_DATA = "Use another data set with the preset's protocol; see `proxyfl data ls`."
LABELLED = "Share of the images that keep their label."
ALPHA = "Dirichlet concentration; smaller is more heterogeneous, but 0 means IID."
SUBSET = "Training images: a share up to 1, or a count."
SEED = "Seed of weights, sampling, batches and views."
WEIGHTS = "Start from these weights: a model file, or a run (its last model)."
DTYPE = "fp32, bf16, or auto (bf16 if the machine supports it)."
NAME = "The run's name; by default derived from its settings."
RESUME = "Continue the run if it exists: one command to start and to resume."


def run(
    preset: Annotated[
        str,
        typer.Argument(
            metavar="[PRESET|folder:PATH|FILE.toml]",
            help=(
                "A name from `proxyfl config ls`, your own data as folder:PATH, npz:FILE or "
                "table:FILE, or a settings file."
            ),
        ),
    ] = "digits",
    method: Method = None,
    set_: Settings = None,
    protocol: Protocol = "shared",
    data: Annotated[str | None, option(OTHER_DATA, metavar="NAME", panel=PROTOCOL)] = None,
    label_ratio: Annotated[float | None, option(LABELLED, panel=PROTOCOL)] = None,
    scenario: Scenario = None,
    alpha: Annotated[float | None, option(ALPHA, panel=PROTOCOL)] = None,
    clients: Annotated[int | None, option("Registered clients.", panel=PROTOCOL)] = None,
    per_round: Annotated[int | None, option("Clients per round.", panel=PROTOCOL)] = None,
    rounds: Annotated[int | None, option("Communication rounds.", panel=PROTOCOL)] = None,
    width: Annotated[int | None, option("Width of the network.", panel=PROTOCOL)] = None,
    image_size: Annotated[int | None, option("Side in pixels; 0 is the native size.", panel=PROTOCOL)] = None,
    subset: Annotated[float | None, option(SUBSET, panel=PROTOCOL)] = None,
    seed: Annotated[int | None, option(SEED, panel=PROTOCOL)] = None,
    weights: Annotated[str | None, option(WEIGHTS, panel=PROTOCOL)] = None,
    fidelity: Fidelity = None,
    device: Annotated[str | None, option("cpu, cuda, cuda:1 or mps.", panel=MACHINE)] = None,
    dtype: Annotated[str | None, option(DTYPE, panel=MACHINE)] = None,
    workers: Workers = None,
    engine: EngineName = "workers",
    address: Address = None,
    per_client: PerClient = None,
    name: Annotated[str | None, option(NAME, panel=MACHINE)] = None,
    runs: Runs = Path("runs"),
    resume: Annotated[bool, option(RESUME, "--resume", panel=MACHINE)] = False,
    data_root: DataRoot = None,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Train a method and record everything in a run directory.

    Settings come from a preset (one per data set) or a TOML file; flags and --set override them.

    Ctrl-C stops a run; `proxyfl resume` continues it with an identical result.
    """
    flags = {
        "data": data,
        "label_ratio": label_ratio,
        "scenario": scenario,
        "alpha": alpha,
        "clients": clients,
        "per_round": per_round,
        "rounds": rounds,
        "width": width,
        "image_size": image_size,
        "subset": subset,
        "seed": seed,
        "weights": weights,
        "device": device,
        "dtype": dtype,
        "fidelity": fidelity,
    }
    where = chosen_engine(engine, address, per_client, workers)
    if where is None:
        start_early(workers)
    config = load_settings(preset, method, flags, set_, data_root, protocol)

    from proxyfl.runs.experiment import Experiment
    from proxyfl.runs.protocols import OWN, summary
    from proxyfl.runs.settings import default_name

    path = runs / (_checked_name(name) if name is not None else default_name(config))
    experiment = Experiment(config=config, data_root=data_root)
    if resume and (path.exists() or creation_cut_short(path)):
        _require_same(path, experiment.config)
        go_on(path, None, workers, data_root, log or (), quiet, where)
        return
    if path.exists():
        raise RunError(
            f"{path} exists; continue it with '{command('resume', path)}' or --resume, or use another --name"
        )
    require_device(config)
    if not quiet:
        console = out()
        console.print(settings_tree(config, path.name, console))
        if protocol == OWN:
            console.print(summary(config), markup=False, soft_wrap=True)
    train(
        path,
        config,
        lambda observers: experiment.run(path, observers, workers, engine=where),
        log=log or (),
        quiet=quiet,
    )


def _require_same(path: Path, config: Config) -> None:
    """Refuse to go on with a run that was begun with other settings."""
    from proxyfl.core.trees import dotted
    from proxyfl.runs.config_file import recorded
    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.run import Run
    from proxyfl.runs.settings import identity

    theirs = Run(path).config if path.exists() else recorded(RunDirectory(RunDirectory(path).aside).config)
    if identity(theirs) == identity(config):
        return
    old, new = dotted(theirs.to_tree()), dotted(config.to_tree())
    changed = [f"{key} is {old.get(key)!r} there" for key in new if old.get(key) != new[key]]
    raise RunError(
        f"{path} was made with other settings ({', '.join(changed[:3])}); choose another --name, or continue "
        f"it as it is with '{command('resume', path)}'"
    )


def _checked_name(name: str) -> str:
    if not name or name.startswith(".") or Path(name).name != name:
        raise ConfigError(
            f"--name '{name}' must be a folder's name without a path; --runs says where it is put"
        )
    return name
