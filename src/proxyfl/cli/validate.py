"""``proxyfl validate``: is this config sound, is this run intact?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    DataRoot,
    examples,
    find_run,
    is_run,
    load_settings,
    out,
    plain_table,
    runs_folder,
)
from proxyfl.core.errors import ProxyFLError, RunError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxyfl.core.config import Config
    from proxyfl.data.dataset import Dataset
    from proxyfl.runs.directory import RunDirectory

EXAMPLES = examples("proxyfl validate mine.toml", "proxyfl validate runs/digits-proxyfl-seed1-4b2c91")


def validate(
    target: Annotated[str, typer.Argument(metavar="FILE.toml|RUN", help="A config file or a run's folder.")],
    data_root: DataRoot = None,
) -> None:
    """Check a config file, with its data if available; or every checksum of a run.

    If something is wrong: exit code 2 and one line that says what.
    """
    given = Path(target)
    if given.is_dir() or (given.suffix != ".toml" and is_run(runs_folder() / given)):
        _validate_run(find_run(target))
    else:
        config = load_settings(target, None, {}, None)
        typer.echo(f"OK: {_sizes(config, data_root)}")


def _sizes(config: Config, root: Path | None) -> str:
    """Method, data, clients, rounds and network in a line; the data is cut up as the run would do it."""
    from proxyfl.data import sources
    from proxyfl.data.files import data_root

    method, data = config.method.name, config.data.name
    federation, clients = config.federation, config.partition.clients
    rounds = f"{federation.rounds} rounds with {federation.per_round} of {clients} clients"
    source = sources.find(data).reading(config.data.keys)
    found = source.locate(data_root(root))
    if not found.present:
        cure = f"; {source.cure(data_root(root))}" if source.cure(data_root(root)) else ""
        return f"{method} on {data}, {rounds}; the data is not available{cure}"

    from proxyfl.runs.fit import require_numbers
    from proxyfl.runs.simulation import prepare

    simulation = prepare(config, root)
    require_numbers(simulation.dataset)
    held = simulation.partition.sizes
    labelled = int(sum(simulation.partition.labelled.sizes))
    server = len(simulation.partition.server)
    least, most = int(held.min()), int(held.max())
    spread = f"{least:,} to {most:,} per client" if least < most else f"{most:,} per client"
    images = f"{int(held.sum()):,} {simulation.dataset.called} ({labelled:,} labelled), {spread}"
    images += f", and {server:,} labelled at the server" if server else ""
    network = f"{_network(config)} with {_parameters(config, simulation.dataset)}"
    return f"{method} on {data}: {images}; {rounds}; {network}"


def _network(config: Config) -> str:
    model = config.model
    return f"{model.trained} on features of {model.encoder}" if model.encoder else model.name


def _parameters(config: Config, dataset: Dataset) -> str:
    from proxyfl.core.rng import SERVER, isolated
    from proxyfl.methods import registry
    from proxyfl.models import Network

    method = registry.method_of(config)
    network = Network.configured(config.model, len(dataset.classes), dataset.channels, dataset.image_size)
    with isolated(config.seed, 0, SERVER, "count"):  # building draws from the global generator
        built = network(method.needs_heads)
        whole = sum(parameter.numel() for parameter in built.parameters())
        trained = sum(parameter.numel() for parameter in network.adapt(built).parameters())
    return f"{whole:,} parameters" + (f"; {trained:,} are trained" if network.is_partial else "")


def _validate_run(path: Path) -> None:
    from rich.markup import escape

    from proxyfl.runs.directory import RunDirectory
    from proxyfl.runs.manifests import folders

    run = RunDirectory(path).require()
    checks: list[tuple[str, str]] = [(folder.name, _checkpoint_fault(folder)) for folder in folders(run)]
    intact = [name for name, fault in checks if not fault]
    if intact:
        checks += _files_against(run, intact[0])
    checks += [(f"models/{which}", _model_fault(run, which)) for which in ("best", "last")]
    table = plain_table("what", "verdict", keep=("what",))
    for name, fault in checks:
        table.add_row(escape(name), f"[red]{escape(fault)}[/]" if fault else "[green]intact[/]")
    out().print(table)
    bad = [name for name, fault in checks if fault]
    if not intact:
        raise RunError(f"{path} has no intact checkpoint and cannot be continued")
    if bad:
        cure = (
            f"resuming it starts from {intact[0]} and rewrites metrics, partition and "
            "models, with their copies; snapshots are left unchanged"
        )
        raise RunError(f"{path} is damaged: {', '.join(bad)}; {cure}")
    typer.echo(f"OK: {path} is intact, {int(intact[0].removeprefix('round-'))} rounds")


def _checkpoint_fault(folder: Path) -> str:
    from proxyfl.runs.checkpoint import read

    try:
        read(folder)
    except ProxyFLError as error:
        return str(error).removeprefix(str(folder.parent) + "/")
    return ""


def _files_against(run: RunDirectory, newest: str) -> list[tuple[str, str]]:
    """The run's own files compared with what the newest intact checkpoint says about them."""
    from proxyfl.core.checksum import is_intact
    from proxyfl.core.files import SHORT, begins_with, has_hash
    from proxyfl.runs.checkpoint import read
    from proxyfl.runs.directory import AT_SITES, json_lines, measured
    from proxyfl.runs.metrics_log import CLIENTS, files
    from proxyfl.runs.repair import has_clients

    saved = read(run.checkpoints / newest)
    unchanged = begins_with(run.config, saved.config, whole=True)
    verdicts = [(run.config, unchanged, "changed since the run began")]
    wrong = "missing or not what its checksum says"
    for file, most in ((run.partition, None), (run.environment, SHORT)):
        verdicts.append((file, has_hash(file, saved.run_files.get(file.name), most), wrong))
    for file in (run.metrics, run.metrics_copy):
        verdicts.append((file, begins_with(file, saved.metrics), "not what the checkpoint says"))
    for file in files(run, CLIENTS) if saved.clients != b"" else ():
        fine = saved.clients is not None and has_clients(file, saved.clients)
        verdicts.append((file, fine, "not what the checkpoint says"))
    copies = [run.best_copy] if measured(json_lines(saved.metrics)) else []
    for file in (*copies, *sorted(run.snapshots.glob("round-*.safetensors"))):
        verdicts.append((file, is_intact(file), wrong))
    found = [(str(file.relative_to(run.path)), "" if fine else fault) for file, fine, fault in verdicts]
    if len(saved.state.versions) and saved.run_files["data"] != AT_SITES:
        found.append((run.clients.name, _states_fault(run.clients, saved.state.versions.items())))
    if run.server.is_dir():
        found.append((run.server.name, _states_fault(run.server, _versions_on(run.server))))
    return found


def _states_fault(folder: Path, versions: Iterable[tuple[int, int]]) -> str:
    """What is wrong with the versions, of client and round, that a store should have."""
    from proxyfl.federation.client_store import ClientStore

    try:
        for client, round in versions:
            ClientStore(folder).load(client, round)
    except ProxyFLError as error:
        return str(error)
    return ""


def _versions_on(store: Path) -> list[tuple[int, int]]:
    """Client and round of all that is on a store."""
    names = re.compile(r"([0-9]{9,18})/round-([0-9]{8})\.safetensors")
    found = (names.fullmatch(f"{file.parent.name}/{file.name}") for file in sorted(store.glob("*/*/*")))
    return [(int(match[1]), int(match[2])) for match in found if match]


def _model_fault(run: RunDirectory, which: str) -> str:
    from proxyfl.runs.directory import measured, read_json_lines
    from proxyfl.runs.export import NotRegistered, load_model

    path = run.models / f"{which}.safetensors"
    if not path.is_file() and run.metrics.is_file():
        unmeasured = which == "best" and not measured(read_json_lines(run.metrics))
        if unmeasured or not run.metrics.stat().st_size:
            return ""  # there is no model before the first round, no best one before the first measured
    try:
        load_model(path)
    except NotRegistered:
        return ""  # its checksum holds, and nobody here can say more
    except ProxyFLError as error:
        return str(error).removeprefix(str(run.path) + "/")
    return ""
