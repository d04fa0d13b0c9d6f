"""Options that say where clients, or whole runs, are trained: on this machine or on a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxyfl.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from proxyfl.engines.cluster.engine import RayEngine

WORKERS, RAY = "workers", "ray"
PANEL = "Machine and place"
AMOUNTS = ("cpus", "gpus", "memory")

EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="workers|ray",
        help="Train on this machine, or on a Ray cluster. Never changes the result.",
        rich_help_panel=PANEL,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="auto|local|HOST:PORT",
        help="The Ray cluster: auto is the one this machine belongs to, local starts one for this command.",
        show_default="auto",
        rich_help_panel=PANEL,
    ),
]
PerClient = Annotated[
    str | None,
    typer.Option(
        "--per-client",
        metavar="cpus=1,gpus=0.5,memory=4",
        help="Resources per client on a node of the Ray cluster; memory in GB.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
PerRun = Annotated[
    str | None,
    typer.Option(
        "--per-run",
        metavar="cpus=1,gpus=0.5,memory=4",
        help="Resources per run on a node of the Ray cluster; memory in GB.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]


def chosen_engine(
    engine: str, address: str | None, amounts: str | None, workers: int | None, per: str = "--per-client"
) -> RayEngine | None:
    """The cluster that the options name; None for this machine."""
    if engine not in (WORKERS, RAY):
        raise ConfigError(f"unknown engine '{engine}'; {nearest(engine, (WORKERS, RAY))}")
    if engine == WORKERS:
        for option, value in (("--address", address), (per, amounts)):
            if value is not None:
                raise ConfigError(f"{option} is for a Ray cluster; add --engine ray, or leave it out")
        return None
    from proxyfl.engines.cluster.engine import RayEngine

    return RayEngine(address or "auto", workers, **_amounts(amounts or "", per))


def _amounts(text: str, option: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in word.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name not in AMOUNTS or number < 0 or name in found:
            raise ConfigError(f"{option} '{text}' must be like cpus=1,gpus=0.5,memory=4, each at most once")
        found[name] = number
    return found
