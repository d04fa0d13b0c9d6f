"""``proxyfl config``: the presets, with every value, to read or to copy and edit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import (
    Fidelity,
    Method,
    Protocol,
    Settings,
    command,
    examples,
    load_settings,
    out,
    plain_table,
)
from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from proxyfl.core.config import Config

EXAMPLES = examples(
    "proxyfl config ls",
    "proxyfl config show cifar10 --method fedavg",
    "proxyfl config copy cifar10 mine.toml",
    "proxyfl config explain train",
)
app = typer.Typer(no_args_is_help=True, epilog=EXAMPLES)

Preset = Annotated[
    str,
    typer.Argument(metavar="PRESET", help="A name from `proxyfl config ls`, or a file.", show_default=False),
]


@app.command("ls", epilog=examples("proxyfl config ls"))
def list_presets() -> None:
    """List the presets: one protocol per data set."""
    from proxyfl.runs.config_file import preset, preset_names

    right = ("rounds", "clients", "epochs", "batch", "lr", "width")
    table = plain_table("preset", "data", "method", *right, right=right)
    for name in preset_names():
        config = preset(name)
        clients = f"{config.federation.per_round} of {config.partition.clients}"
        train = config.train
        table.add_row(
            name,
            config.data.name,
            config.method.name,
            str(config.federation.rounds),
            clients,
            str(train.epochs),
            str(train.batch),
            f"{train.lr:g}",
            str(config.model.width),
        )
    console = out()
    console.print(table)
    console.print(f"\nevery value of one: {command('config', 'show', 'digits')}")


@app.command(epilog=examples("proxyfl config show cifar10", "proxyfl config show digits --fidelity paper"))
def show(
    preset: Preset,
    method: Method = None,
    protocol: Protocol = "shared",
    fidelity: Fidelity = None,
    set_: Settings = None,
) -> None:
    """Print a preset as TOML with every value."""
    from proxyfl.runs.config_file import to_toml

    config = load_settings(preset, method, {"fidelity": fidelity}, set_, protocol=protocol)
    typer.echo(to_toml(config, _how_to_run(preset, config, protocol)), nl=False)


@app.command(
    epilog=examples(
        "proxyfl config copy digits mine.toml",
        "proxyfl config copy cifar10 fedavg.toml --method fedavg --force",
    )
)
def copy(
    preset: Preset,
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The file to write.", show_default=False)],
    method: Method = None,
    protocol: Protocol = "shared",
    fidelity: Fidelity = None,
    set_: Settings = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a preset with every value and its meaning to a file, to be edited and run."""
    from proxyfl.core.files import write_bytes
    from proxyfl.runs.settings import explained

    if file.suffix != ".toml":
        raise ConfigError(f"{file} must end in .toml, so that 'proxyfl run' recognises it as a file")
    config = load_settings(preset, method, {"fidelity": fidelity}, set_, protocol=protocol)
    if file.exists() and not force:
        raise ConfigError(f"{file} exists; overwrite it with --force or choose another name")
    try:
        write_bytes(file, explained(config, command("run", file)).encode())
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
    typer.echo(f"wrote {file}; edit it, then: {command('run', file)}")


@app.command(epilog=examples("proxyfl config explain", "proxyfl config explain method --method sage"))
def explain(
    section: Annotated[
        str, typer.Argument(metavar="[SECTION]", help="train, data, method.icpl …", show_default="all")
    ] = "",
    method: Annotated[str, typer.Option("--method", help="Whose parameters.")] = "proxyfl",
) -> None:
    """Explain every setting: default, range, values in other fidelities and meaning."""
    from rich.markup import escape

    from proxyfl.cli.present import as_toml
    from proxyfl.core.errors import nearest
    from proxyfl.runs.settings import meanings

    known = meanings(method)
    wanted = section.removesuffix(".")
    chosen = {name: row for name, row in known.items() if not wanted or f"{name}.".startswith(f"{wanted}.")}
    if not chosen:
        sections = {name.rpartition(".")[0] for name in known} - {""}
        raise ConfigError(f"unknown section '{section}'; {nearest(section, sections)}")
    table = plain_table("setting", "default", "range", "meaning", keep=("setting",))
    for name, (default, span, meaning) in chosen.items():
        table.add_row(name, f"[cyan]{escape(as_toml(default))}[/]", escape(span), escape(meaning))
    out().print(table)


def _how_to_run(preset: str, config: Config, protocol: str) -> str:
    words = ["run", preset, "--method", config.method.name, "--fidelity", config.fidelity]
    return command(*words, *(["--protocol", protocol] if protocol != "shared" else []))
