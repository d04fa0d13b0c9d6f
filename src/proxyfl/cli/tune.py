"""``proxyfl tune``: search for good settings, judged on validation images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.cli.common import (
    INTERRUPTED,
    DataRoot,
    Method,
    Runs,
    Scenario,
    Settings,
    Workers,
    command,
    err,
    examples,
    load_settings,
    out,
    overrides,
    plain_table,
)
from proxyfl.cli.engine import Address, EngineName, PerClient, chosen_engine
from proxyfl.core.text import percent

if TYPE_CHECKING:
    from proxyfl.core.config import Config
    from proxyfl.runs.tune import Search, Trial

EXAMPLES = examples(
    "proxyfl tune digits --method proxyfl --search train.lr=0.01..0.3 --search method.tau=0.7..0.99",
    "proxyfl tune folder:clinic --search train.lr=0.01..0.3 --search model.width=1,2,4 --trials 20",
)
VALIDATION = 0.1
JUDGED = "validation accuracy "
SHOWN = 10
"""Rows of the table that ends a search."""


def tune(
    preset: Annotated[
        str,
        typer.Argument(metavar="[PRESET|folder:PATH|FILE.toml]", help="What to train, as for `proxyfl run`."),
    ] = "digits",
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="SETTING=…",
            help=(
                "A range (train.lr=0.01..0.3), values (train.batch=16,32), or only a setting "
                "if it has bounds. Repeatable."
            ),
            show_default=False,
        ),
    ] = None,
    method: Method = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Total number of trials.")] = 20,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Rounds per trial.", show_default=False)
    ] = None,
    set_: Settings = None,
    scenario: Scenario = None,
    name: Annotated[str, typer.Option("--name", help="The search's folder, inside --runs.")] = "tune",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the trials and the search.")] = 1,
    runs: Runs = Path("runs"),
    workers: Workers = None,
    engine: EngineName = "workers",
    address: Address = None,
    per_client: PerClient = None,
    data_root: DataRoot = None,
) -> None:
    """Search for good settings with Optuna, judged by accuracy on validation images.

    Each trial is a run below RUNS/NAME. Trials that fall behind are stopped early. The same command
    continues a search that was stopped, and adds trials if --trials is larger. It ends with a table, the
    importance of the settings and a config to run. Test images are not used.
    """
    from proxyfl.core.trees import merge, nested
    from proxyfl.runs.experiment import load_config
    from proxyfl.runs.tune import Search, read_space

    where = chosen_engine(engine, address, per_client, workers)
    flags = {"rounds": rounds, "scenario": scenario, "seed": seed}
    base = load_settings(preset, method, flags, set_, data_root)
    given = overrides(method, flags, set_ or ())
    if not base.data.validation:
        err().print(
            f"note: data.validation = {VALIDATION}: the search is judged on these images", markup=False
        )
        given = merge(given, {"data": {"validation": VALIDATION}})

    def make(settings: dict[str, Any]) -> Config:
        return load_config(preset, merge(given, nested(settings)), method, data_root)

    spaces = [read_space(text, base) for text in search or ()]
    found = Search(runs / name, spaces, make, seed)
    try:
        found.run(
            trials,
            data_root=data_root,
            workers=workers,
            engine=where,
            progress=True,
            tell=lambda trial: _tell(trial, trials),
        )
    except KeyboardInterrupt as interrupt:
        err().print("stopped; the same command continues the search", markup=False)
        raise typer.Exit(INTERRUPTED) from interrupt
    _conclude(found, make)


def _tell(trial: Trial, trials: int) -> None:
    values = ", ".join(f"{key} = {_short(value)}" for key, value in trial.settings.items())
    err().print(f"trial {trial.number} of {trials}: {values}: {_ended(trial)}", markup=False, soft_wrap=True)


def _conclude(found: Search, make: Any) -> None:
    from proxyfl.core.errors import ProxyFLError
    from proxyfl.core.files import write_bytes
    from proxyfl.report.importance import draw_importances
    from proxyfl.runs.settings import explained

    names = [space.name for space in found.spaces]
    table = plain_table("trial", *names, "validation accuracy", "run", right=("trial", *names))
    ranked = sorted(found.trials(), key=lambda trial: (trial.score is None, -(trial.score or 0.0)))
    for trial in ranked[:SHOWN]:
        values = [_short(trial.settings[each]) for each in names]
        table.add_row(str(trial.number), *values, _ended(trial).removeprefix(JUDGED), trial.run)
    console = out()
    console.print(table)
    if len(ranked) > SHOWN:
        console.print(f"the best {SHOWN} of {len(ranked)} trials", markup=False)
    shares = found.importances()
    for setting, share in shares.items():
        console.print(f"importance of {setting}: {share:.0%}", markup=False)
    best = found.best()
    file = found.folder / "best.toml"
    write_bytes(file, explained(make(best.settings), command("run", file)).encode())
    if shares:
        try:
            picture, *_ = draw_importances(shares, found.folder / "importance.png")
            console.print(f"picture    {picture}", markup=False, soft_wrap=True)
        except ProxyFLError as error:  # matplotlib is an extra
            err().print(f"note: no picture: {error}", markup=False)
    console.print(f"best       {command('run', file)}", markup=False, soft_wrap=True)


def _ended(trial: Trial) -> str:
    if trial.score is not None:
        return f"{JUDGED}{percent(trial.score)}"
    return f"failed: {trial.fault}" if trial.fault else "stopped early"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
