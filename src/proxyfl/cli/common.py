"""What the verbs share: how errors are reported, options that several have, finding a run by path or name."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperGroup

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError
from proxyfl.core.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from proxyfl.core.config import Config
    from proxyfl.core.trees import Tree
    from proxyfl.runs.run import Run

USER_ERROR = 2
INTERRUPTED = 130


def option(help: str, *names: str, panel: str | None = None, default: str | bool = False, **more: Any) -> Any:
    """An option whose default is shown only where that helps."""
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=default, **more)


RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's folder, or its name in the runs folder.", show_default=False),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root", envvar="PROXYFL_DATA", help="The folder with the data sets.", show_default=False
    ),
]
Runs = Annotated[
    Path, typer.Option("--runs", envvar="PROXYFL_RUNS", help="The folder in which runs are kept.")
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="A name from `proxyfl methods`, or parent+addon.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any setting, such as method.tau=0.9. Repeatable.",
        show_default=False,
    ),
]
Fidelity = Annotated[
    str | None,
    typer.Option("--fidelity", help="Interpretation of the paper: clean, code or paper.", show_default=False),
]
Scenario = Annotated[
    str | None,
    typer.Option(
        "--scenario",
        help=(
            "Who has labels: clients (each a few), server (only the server), partial "
            "(some clients all of theirs)."
        ),
        show_default=False,
        rich_help_panel="Protocol",
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        metavar="own|shared",
        help=(
            "own: the settings of the method's own paper replace those of the preset; "
            "settings you give take precedence."
        ),
        rich_help_panel="Protocol",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        help="Processes that train clients in parallel; 0: train in this process. Never changes the result.",
        show_default="one per core",
        rich_help_panel="Machine and place",
    ),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="TOOL",
        help="Also log to tensorboard, mlflow or wandb. Repeatable.",
        show_default=False,
        rich_help_panel="Machine and place",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the run's folder, no settings and no progress.")
]


class Verbs(TyperGroup):
    """The verbs. What a user can fix is reported on one line; anything else keeps its traceback."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        _flow(self)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ProxyFLError as error:
            tell_error(str(error))
            raise typer.Exit(USER_ERROR) from error
        except PermissionError as error:
            tell_error(
                f"{error.filename} is not accessible to this user; grant access or choose another folder"
            )
            raise typer.Exit(USER_ERROR) from error
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from error


def _flow(verb: click.Command) -> None:
    """Join the lines of each paragraph of a help text, so that a terminal of any width wraps them itself."""
    if verb.help:
        verb.help = re.sub(r"(?<=\S)\n(?=\S)", " ", verb.help)
    for inner in getattr(verb, "commands", {}).values():
        _flow(inner)


def tell_error(message: str) -> None:
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {one_line(message)}", err=True)


def examples(*commands: str) -> str:
    """Commands to try, as the last lines of a help text."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  [cyan]{_literal(command)}[/]" for command in commands)])


def _literal(text: str) -> str:
    return text.replace("[", "\\[")


def command(*words: object) -> str:
    """A command line to type next, with the plug-ins that this one was given."""
    context = click.get_current_context(silent=True)
    plugins: Sequence[str] = (context.find_root().params.get("plugin") if context else None) or ()
    options = [part for plugin in plugins for part in ("--plugin", plugin)]
    return shlex.join(["proxyfl", *options, *map(str, words)])


def out() -> Console:
    """Where results go."""
    from proxyfl.cli.terminal import Terminal

    return Terminal(highlight=False)


def err() -> Console:
    """Where progress and warnings go."""
    from proxyfl.cli.terminal import Terminal

    return Terminal(stderr=True, highlight=False)


def plain_table(*columns: str, right: Sequence[str] = (), keep: Sequence[str] = ()) -> Table:
    """A table without lines. Columns named in ``keep`` are never wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=name in keep, overflow="fold"
        )
    return table


def read_seeds(text: str) -> tuple[int, ...]:
    """How many (seeds 1 to n), or which, with commas: ``3`` is 1, 2, 3, ``3,`` is 3 alone."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise ConfigError(f"--seeds {text} must be a number of seeds or a list: 11,12,13")
    numbers = [int(word) for word in words]
    if "," in text:
        return tuple(dict.fromkeys(numbers))
    if not numbers[0]:
        raise ConfigError(
            f"--seeds {text} selects no run; give a number of seeds, or a list: '0,' is seed 0 alone"
        )
    return tuple(range(1, numbers[0] + 1))


def runs_folder() -> Path:
    return Path(os.environ.get("PROXYFL_RUNS") or "runs")


def find_run(text: str, accept: Callable[[Path], bool] | None = None) -> Path:
    """The run at a path, or the one of that name in the runs folder."""
    from proxyfl.runs.directory import RunDirectory

    accept = accept or is_run
    given = Path(text).expanduser()
    places = [given] if given.is_absolute() else [given, runs_folder() / given]
    for place in places:
        if accept(place):
            return place
    for place in places:
        if (place / "checkpoints").is_dir() or RunDirectory(place).is_rest:
            RunDirectory(place).require()  # says what is missing
    near = [name for place in places for name in _close_runs(place)]
    hint = f"did you mean '{near[0]}'?" if near else "'proxyfl ls DIR' lists the runs in a folder"
    raise RunError(f"{text} is not a run; {hint}")


def is_run(path: Path) -> bool:
    from proxyfl.runs.directory import RunDirectory

    return RunDirectory(path).is_run


def open_runs(places: Iterable[Path]) -> list[Run]:
    """The runs at these places. Damaged ones are named and left out, unless there are no others."""
    from proxyfl.runs.run import Damaged, Run, open_run

    found = [open_run(place) for place in places]
    damaged = [each for each in found if isinstance(each, Damaged)]
    if damaged and len(damaged) == len(found):
        raise RunError(damaged[0].reason)
    for each in damaged:
        tell_left_out(each.path, each.reason)
    return [each for each in found if isinstance(each, Run)]


def tell_left_out(path: Path, reason: str) -> None:
    err().print(f"note: left out, damaged: {path}: {reason}", markup=False, soft_wrap=True)


def _close_runs(place: Path) -> list[Path]:
    try:
        names = [path.name for path in place.parent.iterdir() if is_run(path)]
    except OSError:
        return []
    return [place.parent / name for name in difflib.get_close_matches(place.name, names, n=1, cutoff=0.5)]


def load_settings(
    preset: str,
    method: str | None,
    flags: Mapping[str, Any],
    assignments: Sequence[str] | None,
    root: Path | None = None,
    protocol: str = "shared",
) -> Config:
    """The config that a preset, own data or a TOML file, flags and ``--set`` ask for together."""
    from proxyfl.runs import own
    from proxyfl.runs.experiment import load_config

    asked = overrides(method, flags, assignments or ())
    if method and preset.endswith(".toml"):
        _note_other_method(Path(preset), method)
    config = load_config(preset, asked, method, root, protocol)
    if config.preset == own.PRESET and not preset.endswith(".toml"):
        typer.echo(f"note: {own.summary(config)}", err=True)
    return config


def overrides(method: str | None, flags: Mapping[str, Any], assignments: Sequence[str]) -> Tree:
    """Flags and assignments as nested tables. A setting that is given twice is an error, whichever way."""
    from proxyfl.core.trees import dotted, merge, parse_assignment
    from proxyfl.runs.short_names import COMMON, from_short

    given = {
        COMMON[name]: f"--{name.replace('_', '-')} {value}"
        for name, value in flags.items()
        if value is not None
    }
    if method is not None:
        given["method.name"] = f"--method {method}"
    layers = [from_short(flags)]
    for text in assignments:
        layers.append(parse_assignment(text))
        for key in dotted(layers[-1]):
            if key == "preset":
                raise ConfigError("preset cannot be set; name it as the first argument: proxyfl run PRESET")
            if key in given:
                raise ConfigError(f"'{key}' is given twice: {given[key]} and --set {text}; keep one")
            given[key] = f"--set {text}"
    return merge(*layers)


def _note_other_method(path: Path, method: str) -> None:
    """Say so when a file's method table does not apply to the method that is asked for."""
    from proxyfl.core.trees import table_in
    from proxyfl.runs.config_file import load_toml

    section = table_in(load_toml(path), "method")
    named = section.get("name")
    if named and named != method and len(section) > 1:
        text = f"note: [method] of {path} is for {named}; {method} starts from its own defaults"
        typer.echo(one_line(text), err=True)


def require_device(config: Config) -> None:
    """Find out before anything is written whether the device can be used."""
    import torch

    name = config.compute.device
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"compute.device = '{name}' cannot be used here: {reason}") from error
